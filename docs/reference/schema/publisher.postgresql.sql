CREATE TABLE outbox_events (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    id UUID NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT DEFAULT 0 NOT NULL,
    lost_claims SMALLINT DEFAULT 0 NOT NULL,
    replays SMALLINT DEFAULT 0 NOT NULL,
    maybe_sent BOOLEAN DEFAULT false NOT NULL,
    next_retry_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    occurred_at TIMESTAMP WITH TIME ZONE,
    processed_at TIMESTAMP WITH TIME ZONE,
    claim_token UUID,
    broker_partition INTEGER,
    broker_offset BIGINT,
    failed BOOLEAN DEFAULT false NOT NULL,
    status VARCHAR(16) DEFAULT 'PENDING' NOT NULL,
    version INTEGER,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    key VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage TEXT,
    headers TEXT,
    last_error TEXT,
    payload BYTEA NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX outbox_events_done ON outbox_events (processed_at) WHERE processed_at IS NOT NULL;

CREATE INDEX outbox_events_due ON outbox_events (event_type, next_retry_at, seq) WHERE processed_at IS NULL;

CREATE INDEX outbox_events_failed ON outbox_events (event_type) WHERE failed;

CREATE INDEX outbox_events_suspects ON outbox_events (event_type, next_retry_at, seq) WHERE lost_claims > 0 AND processed_at IS NULL;

ALTER TABLE outbox_events SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE TABLE outbox_claims (
    token UUID NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    first_due TIMESTAMP WITH TIME ZONE NOT NULL,
    last_due TIMESTAMP WITH TIME ZONE NOT NULL,
    event_type VARCHAR(200) NOT NULL,
    relay VARCHAR(255) NOT NULL,
    PRIMARY KEY (token)
);

CREATE TABLE outbox_dlq_events (
    id UUID NOT NULL,
    lane SMALLINT NOT NULL,
    attempts SMALLINT NOT NULL,
    lost_claims SMALLINT NOT NULL,
    replays SMALLINT NOT NULL,
    maybe_sent BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    occurred_at TIMESTAMP WITH TIME ZONE,
    moved_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    status_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    version INTEGER,
    dlq_status VARCHAR(16) DEFAULT 'MOVED' NOT NULL,
    reason VARCHAR(64) NOT NULL,
    note TEXT,
    event_type VARCHAR(200) NOT NULL,
    topic VARCHAR(255),
    key VARCHAR(512),
    content_type VARCHAR(255) NOT NULL,
    aggregate_type VARCHAR(255),
    aggregate_id VARCHAR(512),
    correlation_id VARCHAR(255),
    traceparent VARCHAR(255),
    tracestate VARCHAR(512),
    baggage TEXT,
    headers TEXT,
    last_error TEXT,
    payload BYTEA NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX outbox_dlq_events_status ON outbox_dlq_events (dlq_status, moved_at);

CREATE TABLE IF NOT EXISTS outbox_state (
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    holder VARCHAR(255),
    value TEXT,
    CONSTRAINT outbox_state_pkey PRIMARY KEY (kind, name)
);

CREATE TABLE outbox_audit (
    id UUID NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(64) NOT NULL,
    event_id UUID,
    detail TEXT,
    PRIMARY KEY (id)
);

CREATE INDEX outbox_audit_at ON outbox_audit (at);

INSERT INTO outbox_state (kind, name, value) VALUES ('schema', 'publisher', '1');
