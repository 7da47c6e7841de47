CREATE TABLE outbox_consumed_events (
    consumer VARCHAR(200) NOT NULL,
    event_id BINARY(16) NOT NULL,
    event_type VARCHAR(200),
    consumed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    mark BINARY(16),
    CONSTRAINT outbox_consumed_events_pkey PRIMARY KEY (consumer, event_id),
    KEY outbox_consumed_events_consumed_at (consumed_at)
) ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE outbox_consumer_attempts (
    consumer VARCHAR(200) NOT NULL,
    event_id BINARY(16) NOT NULL,
    attempts SMALLINT NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_error TEXT,
    CONSTRAINT outbox_consumer_attempts_pkey PRIMARY KEY (consumer, event_id),
    KEY outbox_consumer_attempts_at (updated_at)
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

INSERT INTO outbox_state (kind, name, value) VALUES ('schema', 'consumer', '1');
