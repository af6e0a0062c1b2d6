//go:build unix

package main

import (
	"context"
	"strings"
	"time"

	kcluster "github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kgo"
)

// openTransactions are those that a script left open: the functions that commit
// them, by transactional ID.
type openTransactions map[string]func(context.Context) error

type transactionsKey struct{}

// connectScript connects as a client beside the script.
func connectScript(ts *testscript.TestScript, servers string) (context.Context, *kcluster.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	ts.Defer(cancel)
	cl, err := kcluster.Connect(ctx, kcluster.Config{BootstrapServers: strings.Split(servers, ",")})
	ts.Check(err)
	ts.Defer(cl.Close)
	return ctx, cl
}

// cmdBegin leaves a transaction open in which one record is produced:
//
//	begin $CLUSTER billing-1 shipped
func cmdBegin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: begin BOOTSTRAP TRANSACTIONAL-ID TOPIC")
	}
	ctx, cl := connectScript(ts, args[0])
	p, err := cl.NewKgo(kgo.TransactionalID(args[1]), kgo.DefaultProduceTopic(args[2]))
	ts.Check(err)
	ts.Defer(p.Close)
	ts.Check(p.BeginTransaction())
	ts.Check(p.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
	ts.Value(transactionsKey{}).(openTransactions)[args[1]] = func(ctx context.Context) error {
		return p.EndTransaction(ctx, kgo.TryCommit)
	}
}

// cmdStage leaves a transaction open in which the acknowledgement of one record
// is staged:
//
//	stage $CLUSTER billing-1 group orders
func cmdStage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: stage BOOTSTRAP TRANSACTIONAL-ID GROUP TOPIC")
	}
	ctx, cl := connectScript(ts, args[0])
	ts.Check(cl.SetGroupConfig(ctx, args[2], "share.auto.offset.reset", "earliest"))
	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: args[1]})
	ts.Check(err)
	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: args[2], Topics: []string{args[3]}, MaxRecords: 1})
	ts.Check(err)
	ts.Defer(c.Abandon)
	batch, err := c.Poll(ctx, 1)
	ts.Check(err)
	ts.Check(s.Begin(ctx))
	ts.Check(s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: batch.All(wire.Accept), Group: c.GroupMetadata()}))
	ts.Value(transactionsKey{}).(openTransactions)[args[1]] = func(ctx context.Context) error {
		return s.Commit(ctx, txn.Guard{})
	}
}

// cmdCommit commits a transaction of begin or stage, or fails to since it was
// taken from the producer:
//
//	commit billing-1
//	commit billing-1 fenced
func cmdCommit(ts *testscript.TestScript, neg bool, args []string) {
	fenced := len(args) == 2 && args[1] == "fenced"
	if neg || len(args) != 1 && !fenced {
		ts.Fatalf("usage: commit TRANSACTIONAL-ID [fenced]")
	}
	open := ts.Value(transactionsKey{}).(openTransactions)
	if open[args[0]] == nil {
		ts.Fatalf("transaction %s is not open", args[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	switch err := open[args[0]](ctx); {
	case !fenced:
		ts.Check(err)
	case err == nil:
		ts.Fatalf("the commit of %s succeeded, though its producer was fenced", args[0])
	}
	delete(open, args[0])
}
