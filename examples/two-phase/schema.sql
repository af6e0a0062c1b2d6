-- Which process may write under a transactional ID: the one that raised its
-- generation last.
CREATE TABLE IF NOT EXISTS kshare_owner (
	transactional_id text PRIMARY KEY,
	generation       bigint NOT NULL
);

-- Transactions of Kafka that the database has committed its part of: each row was
-- written in that part.
CREATE TABLE IF NOT EXISTS kshare_decision (
	token       text PRIMARY KEY,
	decided_at  timestamptz NOT NULL DEFAULT now()
);

-- What is done about an order. A topic that is made anew begins at offset 0 again,
-- so the key has its ID and not its name.
CREATE TABLE IF NOT EXISTS shipped (
	group_id      text NOT NULL,
	topic_id      uuid NOT NULL,
	partition     integer NOT NULL,
	record_offset bigint NOT NULL,
	topic         text NOT NULL,
	value         bytea,
	PRIMARY KEY (group_id, topic_id, partition, record_offset)
);
