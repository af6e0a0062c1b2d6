package scene

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The topics, of one partition each, so that a scene is the same every time.
const (
	Orders   = "orders"
	Invoices = "invoices"
	Shipped  = "shipped"
)

// records is how many each of the first two topics has.
const records = 60

// Scene is a sandbox with open transactions. It is used by one goroutine.
type Scene struct {
	sandbox *sandbox.Sandbox
	client  *cluster.Client
	members []*share.Consumer
	open    map[string]*txn.Session
}

// Start starts a sandbox in which nothing is pending. The caller closes it.
func Start(ctx context.Context) (s *Scene, err error) {
	s = &Scene{open: make(map[string]*txn.Session)}
	s.sandbox, err = sandbox.Start(ctx, sandbox.WithTopics(
		sandbox.Topic{Name: Orders, Partitions: 1}, sandbox.Topic{Name: Invoices, Partitions: 1}, sandbox.Topic{Name: Shipped, Partitions: 1},
	), sandbox.WithClusterID("sandbox"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.client, err = cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(s.BootstrapServers(), ",")})
	if err != nil {
		return nil, err
	}
	return s, s.load(ctx, Orders, Invoices)
}

func (s *Scene) load(ctx context.Context, topics ...string) error {
	p, err := s.client.NewKgo()
	if err != nil {
		return err
	}
	defer p.Close()
	for _, topic := range topics {
		for i := range records {
			r := kgo.StringRecord(fmt.Sprintf(`{"id":%d}`, i))
			r.Topic = topic
			if err := p.ProduceSync(ctx, r).FirstErr(); err != nil {
				return err
			}
		}
	}
	return nil
}

// BootstrapServers is where clients connect to, separated by commas.
func (s *Scene) BootstrapServers() string { return s.sandbox.BootstrapServers() }

// Do is what becomes of a run of records, from the first that is not spoken of.
type Do struct {
	Count int
	// As is how they are acknowledged; Gap leaves them acquired.
	As wire.AcknowledgeType
	// Staged are acknowledged in the transaction, which stays open; others at once.
	Staged bool
}

// Stage has a new member of a share group take records of a topic, with a
// transaction that is left open. A timeout of 0 is 60 s.
func (s *Scene) Stage(ctx context.Context, transactionalID string, timeout time.Duration, group, topic string, all ...Do) error {
	if err := s.client.SetGroupConfig(ctx, group, "share.auto.offset.reset", "earliest"); err != nil {
		return err
	}
	session, err := txn.NewSession(ctx, s.client, txn.Config{TransactionalID: transactionalID, Timeout: timeout})
	if err != nil {
		return err
	}
	s.open[transactionalID] = session
	total := 0
	for _, do := range all {
		total += do.Count
	}
	c, err := share.NewConsumer(ctx, s.client, share.Config{GroupID: group, Topics: []string{topic}, MaxRecords: int32(total)})
	if err != nil {
		return err
	}
	s.members = append(s.members, c)
	batch, err := c.Poll(ctx, total)
	if err != nil {
		return err
	}
	if batch.Len() != total {
		return fmt.Errorf("%s got %d records of %s, want %d", group, batch.Len(), topic, total)
	}
	now, staged := decide(batch, all)
	if err := session.Begin(ctx); err != nil {
		return err
	}
	if !now.Empty() {
		if err := c.Acknowledge(ctx, batch, now); err != nil {
			return err
		}
	}
	return session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: staged, Group: c.GroupMetadata()})
}

func decide(batch *share.Batch, all []Do) (now, staged *share.Acknowledgements) {
	now, staged = &share.Acknowledgements{}, &share.Acknowledgements{}
	for _, p := range batch.Partitions {
		records := p.Records
		for _, do := range all {
			for _, r := range records[:do.Count] {
				to := now
				if do.Staged {
					to = staged
				}
				if do.As != wire.Gap {
					to.Add(p.TopicPartition, r.Offset, do.As)
				}
			}
			records = records[do.Count:]
		}
	}
	return now, staged
}

// Commit commits a transaction that is open.
func (s *Scene) Commit(ctx context.Context, transactionalID string) error {
	session := s.open[transactionalID]
	delete(s.open, transactionalID)
	return session.Commit(ctx, txn.Guard{})
}

// Forget makes the coordinator of an open transaction forget it, so that nobody
// ends it any more.
func (s *Scene) Forget(ctx context.Context, transactionalID string) error {
	delete(s.open, transactionalID)
	_, err := s.sandbox.InjectFault(ctx, sandbox.Fault{Kind: sandbox.FaultForgetTransaction, TransactionalID: transactionalID})
	return err
}

// Close ends the sandbox, with all that is open in it.
func (s *Scene) Close() error {
	for _, c := range s.members {
		c.Abandon()
	}
	if s.client != nil {
		s.client.Close()
	}
	return s.sandbox.Close()
}
