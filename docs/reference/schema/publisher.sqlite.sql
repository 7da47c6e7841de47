CREATE TABLE outbox_events (
    seq INTEGER NOT NULL,
    id BLOB NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT DEFAULT 0 NOT NULL,
    lost_claims SMALLINT DEFAULT 0 NOT NULL,
    replays SMALLINT DEFAULT 0 NOT NULL,
    maybe_sent BOOLEAN DEFAULT false NOT NULL,
    next_retry_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    created_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    occurred_at BIGINT,
    processed_at BIGINT,
    claim_token BLOB,
    broker_partition INTEGER,
    broker_offset BIGINT,
    failed BOOLEAN DEFAULT false NOT NULL,
    status VARCHAR(16) DEFAULT 'PENDING' NOT NULL,
    version INTEGER,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    "key" VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage TEXT,
    headers TEXT,
    last_error TEXT,
    payload BLOB NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT outbox_events_id_key UNIQUE (id)
);

CREATE INDEX outbox_events_done ON outbox_events (processed_at) WHERE processed_at IS NOT NULL;

CREATE INDEX outbox_events_due ON outbox_events (event_type, next_retry_at, seq) WHERE processed_at IS NULL;

CREATE INDEX outbox_events_failed ON outbox_events (event_type) WHERE failed;

CREATE INDEX outbox_events_suspects ON outbox_events (event_type, next_retry_at, seq) WHERE lost_claims > 0 AND processed_at IS NULL;

CREATE TABLE outbox_claims (
    token BLOB NOT NULL,
    claimed_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    lease_until BIGINT NOT NULL,
    first_due BIGINT NOT NULL,
    last_due BIGINT NOT NULL,
    event_type VARCHAR(200) NOT NULL,
    relay VARCHAR(255) NOT NULL,
    PRIMARY KEY (token)
);

CREATE TABLE outbox_dlq_events (
    id BLOB NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT NOT NULL,
    lost_claims SMALLINT NOT NULL,
    replays SMALLINT NOT NULL,
    maybe_sent BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    occurred_at BIGINT,
    moved_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    status_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    version INTEGER,
    dlq_status VARCHAR(16) DEFAULT 'MOVED' NOT NULL,
    reason VARCHAR(64) NOT NULL,
    note TEXT,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    "key" VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage TEXT,
    headers TEXT,
    last_error TEXT,
    payload BLOB NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX outbox_dlq_events_status ON outbox_dlq_events (dlq_status, moved_at);

CREATE TABLE IF NOT EXISTS outbox_state (
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    until BIGINT,
    updated_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    holder VARCHAR(255),
    value TEXT,
    CONSTRAINT outbox_state_pkey PRIMARY KEY (kind, name)
);

CREATE TABLE outbox_audit (
    id BLOB NOT NULL,
    at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(64) NOT NULL,
    event_id BLOB,
    detail TEXT,
    PRIMARY KEY (id)
);

CREATE INDEX outbox_audit_at ON outbox_audit (at);

INSERT INTO outbox_state (kind, name, value) VALUES ('schema', 'publisher', '1');
