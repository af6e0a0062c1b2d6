package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
)

//go:embed schema.sql
var schema string

// maxGID is how many bytes the name of a prepared transaction may have.
const maxGID = 199

// database is one connection to PostgreSQL, and what is written there under one
// transactional ID. Its statements for two phases are plain ones: pgx knows
// nothing of them, and would take a transaction that is prepared for an open one.
type database struct {
	conn            *pgx.Conn
	transactionalID string
	generation      int64 // by which this process owns the transactional ID
}

// databaseError is a failure of the database. Whether what was sent took effect it
// does not say.
type databaseError struct {
	op  string
	err error
}

func (e *databaseError) Error() string { return e.op + ": " + e.err.Error() }
func (e *databaseError) Unwrap() error { return e.err }

func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &databaseError{op, err}
}

func openDatabase(ctx context.Context, dsn, transactionalID string) (*database, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	// A process that hangs in the middle of a transaction must not keep its successor
	// from taking over. A transaction that is prepared has no session and stays.
	if _, ok := cfg.RuntimeParams["idle_in_transaction_session_timeout"]; !ok {
		cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "60s"
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &database{conn: conn, transactionalID: transactionalID}
	if err := d.setUp(ctx); err != nil {
		leave(ctx, conn.Close)
		return nil, err
	}
	return d, nil
}

func (d *database) setUp(ctx context.Context) error {
	var most int
	err := d.conn.QueryRow(ctx, `SELECT setting::int FROM pg_settings WHERE name = 'max_prepared_transactions'`).Scan(&most)
	if err != nil {
		return failed("read max_prepared_transactions", err)
	}
	if most == 0 {
		return errors.New("PostgreSQL allows no prepared transactions: set max_prepared_transactions to at least the number of processes, and restart it")
	}
	// Two processes that create a table at once would meet.
	_, err = d.conn.Exec(ctx, "BEGIN; SELECT pg_advisory_xact_lock(hashtext('kshare two-phase schema'));"+schema+"COMMIT")
	return failed("create tables", err)
}

// own raises the generation, after which no transaction of another process can
// begin under the transactional ID. It returns false when one that has begun is
// not over.
func (d *database) own(ctx context.Context) (bool, error) {
	tx, err := d.conn.Begin(ctx)
	if err != nil {
		return false, failed("take over", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '500ms'`); err != nil {
		return false, failed("take over", err)
	}
	err = tx.QueryRow(ctx, `INSERT INTO kshare_owner VALUES ($1, 1)
		ON CONFLICT (transactional_id) DO UPDATE SET generation = kshare_owner.generation + 1
		RETURNING generation`, d.transactionalID).Scan(&d.generation)
	if hasCode(err, "55P03") { // lock_not_available
		return false, nil
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	return err == nil, failed("take over", err)
}

// errSucceeded says that another process has the transactional ID now.
var errSucceeded = errors.New("a successor has taken over")

// begin begins a transaction, and holds the row that says whose the transactional
// ID is until that has ended, prepared or not.
func (d *database) begin(ctx context.Context) error {
	if _, err := d.conn.Exec(ctx, "BEGIN"); err != nil {
		return failed("begin", err)
	}
	var generation int64
	err := d.conn.QueryRow(ctx, `SELECT generation FROM kshare_owner WHERE transactional_id = $1 FOR SHARE`, d.transactionalID).Scan(&generation)
	if err == nil && generation != d.generation {
		err = fmt.Errorf("%q: %w", d.transactionalID, errSucceeded)
	}
	return failed("begin", err)
}

// write does what an order asks for, unless that was done. known counts those.
func (d *database) write(ctx context.Context, group string, b *share.Batch) (known int, err error) {
	var rows pgx.Batch
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			rows.Queue(`INSERT INTO shipped (group_id, topic_id, topic, partition, record_offset, value)
				VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
				group, p.TopicPartition.TopicID, p.TopicPartition.Topic, p.TopicPartition.Partition, r.Offset, r.Value)
		}
	}
	results := d.conn.SendBatch(ctx, &rows)
	for range rows.Len() {
		tag, err := results.Exec()
		if err != nil {
			return 0, failed("write", errors.Join(err, results.Close()))
		}
		if tag.RowsAffected() == 0 {
			known++
		}
	}
	return known, failed("write", results.Close())
}

// record writes the token in the transaction that will be prepared under it.
func (d *database) record(ctx context.Context, token string) error {
	_, err := d.conn.Exec(ctx, `INSERT INTO kshare_decision (token) VALUES ($1)`, token)
	return failed("record the token", err)
}

// prepare is the first phase. Afterwards the transaction is on disk, belongs to no
// session, and waits for its end however long that takes.
func (d *database) prepare(ctx context.Context, token string) error {
	tag, err := d.conn.Exec(ctx, "PREPARE TRANSACTION "+literal(token))
	// Of a transaction with a statement that failed it makes a rollback, and says so
	// nowhere else.
	if err == nil && tag.String() != "PREPARE TRANSACTION" {
		err = fmt.Errorf("the answer is %s", tag)
	}
	return failed("prepare", err)
}

// rollback ends a transaction that is not prepared.
func (d *database) rollback(ctx context.Context) error {
	_, err := d.conn.Exec(ctx, "ROLLBACK")
	return failed("roll back", err)
}

// follow is the second phase: it ends a prepared transaction as Kafka's ended,
// which err says, what the commit there returned. If that does not say it, the
// transaction stays prepared.
func (d *database) follow(ctx context.Context, token string, err error) error {
	switch {
	case err == nil:
		return d.endPrepared(ctx, "COMMIT PREPARED ", token, true)
	case isA[*txn.AbortedError](err):
		return errors.Join(err, d.endPrepared(ctx, "ROLLBACK PREPARED ", token, false))
	}
	return err
}

func (d *database) endPrepared(ctx context.Context, verb, token string, commit bool) error {
	_, err := d.conn.Exec(ctx, verb+literal(token))
	if !hasCode(err, "42704") { // undefined_object
		return failed(strings.ToLower(verb)+token, err)
	}
	// Somebody was faster. What Kafka says is the same to everybody, but a person may
	// have decided otherwise.
	committed, err := d.committed(ctx, token)
	if err == nil && committed != commit {
		err = fmt.Errorf("it is not prepared, and it was committed: %t; Kafka's part was committed: %t", committed, commit)
	}
	return failed(strings.ToLower(verb)+token, err)
}

// committed reports whether the database has committed its part of a token.
func (d *database) committed(ctx context.Context, token string) (bool, error) {
	var yes bool
	err := d.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM kshare_decision WHERE token = $1)`, token).Scan(&yes)
	return yes, err
}

// prepared returns the tokens of what is prepared under the transactional ID in
// this database, oldest first.
func (d *database) prepared(ctx context.Context) ([]txn.Token, error) {
	rows, err := d.conn.Query(ctx, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared`)
	if err != nil {
		return nil, failed("list prepared transactions", err)
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, failed("list prepared transactions", err)
	}
	var out []txn.Token
	for _, gid := range gids {
		if t, err := txn.ParseToken(gid); err == nil && t.TransactionalID == d.transactionalID { // others are not ours
			out = append(out, t)
		}
	}
	return out, nil
}

// literal quotes a text for a statement that takes no parameters.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func hasCode(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}
