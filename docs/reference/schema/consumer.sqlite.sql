CREATE TABLE outbox_consumed_events (
    consumer VARCHAR(200) NOT NULL,
    event_id BLOB NOT NULL,
    event_type VARCHAR(200),
    consumed_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    CONSTRAINT outbox_consumed_events_pkey PRIMARY KEY (consumer, event_id)
);

CREATE INDEX outbox_consumed_events_consumed_at ON outbox_consumed_events (consumed_at);

CREATE TABLE outbox_consumer_attempts (
    consumer VARCHAR(200) NOT NULL,
    event_id BLOB NOT NULL,
    attempts SMALLINT NOT NULL,
    updated_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    last_error TEXT,
    CONSTRAINT outbox_consumer_attempts_pkey PRIMARY KEY (consumer, event_id)
);

CREATE INDEX outbox_consumer_attempts_at ON outbox_consumer_attempts (updated_at);

CREATE TABLE IF NOT EXISTS outbox_state (
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    until BIGINT,
    updated_at BIGINT DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) NOT NULL,
    holder VARCHAR(255),
    value TEXT,
    CONSTRAINT outbox_state_pkey PRIMARY KEY (kind, name)
);

INSERT INTO outbox_state (kind, name, value) VALUES ('schema', 'consumer', '1');
