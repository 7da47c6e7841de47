CREATE TABLE outbox_events (
    seq BIGINT AUTO_INCREMENT NOT NULL,
    id BINARY(16) NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT NOT NULL DEFAULT 0,
    lost_claims SMALLINT NOT NULL DEFAULT 0,
    replays SMALLINT NOT NULL DEFAULT 0,
    maybe_sent BOOL NOT NULL DEFAULT false,
    next_retry_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    occurred_at DATETIME(6),
    processed_at DATETIME(6) NOT NULL DEFAULT '9999-12-31',
    claim_token BINARY(16) NOT NULL DEFAULT '',
    broker_partition INTEGER NOT NULL DEFAULT '-1',
    broker_offset BIGINT NOT NULL DEFAULT '-1',
    failed BOOL NOT NULL DEFAULT false,
    status ENUM('PENDING','IN_PROCESS','PROCESSED','FAILED') NOT NULL DEFAULT 'PENDING',
    version INTEGER,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    `key` VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage MEDIUMTEXT,
    headers MEDIUMTEXT,
    last_error TEXT,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id),
    KEY outbox_events_due (processed_at, event_type, next_retry_at, seq),
    KEY outbox_events_seq (seq)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE outbox_claims (
    token BINARY(16) NOT NULL,
    claimed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    lease_until DATETIME(6) NOT NULL,
    first_due DATETIME(6) NOT NULL,
    last_due DATETIME(6) NOT NULL,
    event_type VARCHAR(200) NOT NULL,
    relay VARCHAR(255) NOT NULL,
    PRIMARY KEY (token)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE outbox_dlq_events (
    id BINARY(16) NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT NOT NULL,
    lost_claims SMALLINT NOT NULL,
    replays SMALLINT NOT NULL,
    maybe_sent BOOL NOT NULL,
    created_at DATETIME(6) NOT NULL,
    occurred_at DATETIME(6),
    moved_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    status_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    version INTEGER,
    dlq_status VARCHAR(16) NOT NULL DEFAULT 'MOVED',
    reason VARCHAR(64) NOT NULL,
    note TEXT,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    `key` VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage MEDIUMTEXT,
    headers MEDIUMTEXT,
    last_error TEXT,
    payload LONGBLOB NOT NULL,
    PRIMARY KEY (id),
    KEY outbox_dlq_events_status (dlq_status, moved_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS outbox_state (
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    until DATETIME(6),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    holder VARCHAR(255),
    value TEXT,
    CONSTRAINT outbox_state_pkey PRIMARY KEY (kind, name)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE outbox_audit (
    id BINARY(16) NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(64) NOT NULL,
    event_id BINARY(16),
    detail TEXT,
    PRIMARY KEY (id),
    KEY outbox_audit_at (at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO outbox_state (kind, name, value) VALUES ('schema', 'publisher', '1');
