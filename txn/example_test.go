package txn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// start starts a sandbox with two topics.
func start(ctx context.Context) *sandbox.Sandbox {
	sb, err := sandbox.Start(ctx, sandbox.WithTopics(
		sandbox.Topic{Name: "orders", Partitions: 1}, sandbox.Topic{Name: "shipped", Partitions: 1},
	))
	if err != nil {
		log.Fatal(err)
	}
	return sb
}

// orders starts a sandbox whose topic "orders" holds two records, and a member
// of the share group "billing" that has acquired them.
func orders(ctx context.Context) (cl *cluster.Client, c *share.Consumer, b *share.Batch, stop func()) {
	sb := start(ctx)
	cl, c, b, leave := acquire(ctx, sb)
	return cl, c, b, func() {
		leave()
		_ = sb.Close()
	}
}

// acquire produces two records and makes a member that acquires them.
func acquire(ctx context.Context, sb *sandbox.Sandbox) (cl *cluster.Client, c *share.Consumer, b *share.Batch, leave func()) {
	var err error
	if cl, err = cluster.Connect(ctx, cluster.Config{BootstrapServers: sb.Addrs()}); err != nil {
		log.Fatal(err)
	}
	if err := cl.SetGroupConfig(ctx, "billing", "share.auto.offset.reset", "earliest"); err != nil {
		log.Fatal(err)
	}
	p, err := cl.NewKgo(kgo.DefaultProduceTopic("orders"), kgo.ProducerLinger(0))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	if err := p.ProduceSync(ctx, kgo.StringRecord("3 apples"), kgo.StringRecord("1 pear")).FirstErr(); err != nil {
		log.Fatal(err)
	}
	if c, err = share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}}); err != nil {
		log.Fatal(err)
	}
	if b, err = c.Poll(ctx, 2); err != nil {
		log.Fatal(err)
	}
	return cl, c, b, func() {
		_ = c.Close(ctx)
		cl.Close()
	}
}

// Read-process-write: the records that are written and the acknowledgement of
// those that were read take effect together.
func ExampleSession() {
	ctx := context.Background()
	cl, c, b, stop := orders(ctx)
	defer stop()

	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "shipping-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	acks := share.FromRecords(b, nil)
	err = s.Begin(ctx)
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			err = errors.Join(err, s.Produce(ctx, &kgo.Record{Topic: "shipped", Value: r.Value}))
		}
	}
	if err == nil {
		err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
			Acknowledgements: acks, Group: c.GroupMetadata(), Leaders: b.Leaders(),
		})
	}
	if err == nil {
		err = c.CheckHeld(b) // what was staged may be a later delivery of the same records
	}
	if err == nil {
		err = s.Commit(ctx, txn.Guard{LockDeadline: b.LockDeadline(), LockDuration: b.LockDuration()})
	}
	switch {
	case err == nil:
		c.Committed(b, acks)
		fmt.Println("committed:", s.Produced(), "written,", s.Staged(), "acknowledged")
	case txn.Classify(err) == txn.ClassAbortable:
		err = s.Abort(ctx) // and the records come again
		c.Reset()
	}
	if err != nil {
		log.Fatal(err)
	}
	// Output: committed: 2 written, 2 acknowledged
}

// Two-phase commit with another system: this process prepares, and any process
// that has the token ends the transaction as the other system has decided.
func ExampleSession_Prepare() {
	ctx := context.Background()
	cl, c, b, stop := orders(ctx)
	defer stop()

	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "shipping-1"})
	if err != nil {
		log.Fatal(err)
	}
	err = s.Begin(ctx)
	if err == nil {
		err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata()})
	}
	if err != nil {
		log.Fatal(err)
	}
	token, err := s.Prepare(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_ = s.Close(ctx) // leaves what is prepared

	// In the transaction of a database: UPDATE ...; INSERT INTO kafka (token) ...
	stored := token.String()

	// After that was committed, here or wherever a crash is recovered from:
	token, err = txn.ParseToken(stored)
	if err != nil {
		log.Fatal(err)
	}
	t, err := txn.Resume(ctx, cl, token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("resumed:", t.Outcome())
	if err := t.Commit(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("now:", t.Outcome())
	// Output:
	// resumed: open
	// now: committed
}

// Whoever does not write to Kafka needs no producer.
func ExampleAcknowledger() {
	ctx := context.Background()
	cl, c, b, stop := orders(ctx)
	defer stop()

	a, err := txn.NewAcknowledger(ctx, cl, txn.AcknowledgerConfig{TransactionalID: "to-file-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close(ctx)
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			fmt.Printf("%s\n", r.Value) // and make it durable
		}
	}
	err = a.CommitAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata(), Leaders: b.Leaders()})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("acknowledged")
	// Output:
	// 3 apples
	// 1 pear
	// acknowledged
}

func ExampleClassify() {
	for _, err := range []error{
		&txn.GuardError{What: "acquisition lock"},
		&txn.FencedError{TransactionalID: "shipping-1"},
		&txn.OutcomeUnknownError{TransactionalID: "shipping-1", Err: context.DeadlineExceeded},
	} {
		fmt.Println(txn.Classify(err))
	}
	// Output:
	// abortable
	// fatal
	// outcome unknown
}

// stagings counts what Kafka's own producer counts.
type stagings struct{ sent, failed atomic.Int64 }

// ShareAcknowledgementsSent is called by several goroutines at once.
func (s *stagings) ShareAcknowledgementsSent(err error) {
	s.sent.Add(1)
	if err != nil {
		s.failed.Add(1)
	}
}

// A program that measures in its own way passes a hook. Package metrics has one
// for Prometheus.
func ExampleMetrics() {
	ctx := context.Background()
	cl, c, b, stop := orders(ctx)
	defer stop()

	var counts stagings
	a, err := txn.NewAcknowledger(ctx, cl, txn.AcknowledgerConfig{TransactionalID: "to-file-1", Metrics: &counts})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close(ctx)
	all := txn.ShareAcknowledgements{Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata()}
	if err := a.CommitAcknowledgements(ctx, all); err != nil {
		log.Fatal(err)
	}
	fmt.Println(counts.sent.Load(), "sent,", counts.failed.Load(), "failed")
	// Output: 1 sent, 0 failed
}

// A test has the sandbox fail, and looks that nothing is lost or doubled by it.
func ExampleSession_Abort() {
	ctx := context.Background()
	sb := start(ctx)
	defer sb.Close()
	cl, c, b, leave := acquire(ctx, sb)
	defer leave()
	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "shipping-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)

	key := sb.Dialect().Key // of TxnShareAcknowledge
	fault := sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &key, Error: "TRANSACTION_ABORTABLE", Count: 1}
	if _, err := sb.InjectFault(ctx, fault); err != nil {
		log.Fatal(err)
	}
	for {
		if err := s.Begin(ctx); err != nil {
			log.Fatal(err)
		}
		err := s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
			Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata(), Leaders: b.Leaders(),
		})
		if err == nil {
			break
		}
		fmt.Println("not staged:", txn.Classify(err))
		if err := s.Abort(ctx); err != nil {
			log.Fatal(err)
		}
		c.Reset() // gives back what this member may still hold
		if b, err = c.Poll(ctx, 2); err != nil {
			log.Fatal(err)
		}
		fmt.Println("delivered again:", b.Len())
	}
	fmt.Println("pending:", sb.Pending()[0].FirstOffset, "to", sb.Pending()[0].LastOffset)
	if err := s.Commit(ctx, txn.Guard{}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// not staged: abortable
	// delivered again: 2
	// pending: 0 to 1
}
