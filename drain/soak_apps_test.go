package drain_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// soakApp is an application: a transactional producer that stages what a member
// of a share group has acquired. It sends the requests of the protocol by itself,
// since package txn would not do most of what is of interest here, such as commit
// what it is in doubt of.
type soakApp struct {
	soakAppPlan
	r      *soakRun
	cl     *cluster.Client
	member *share.Consumer
	topics []string

	now, former producer // an id of -1 is none
}

// requestTimeout bounds the requests of applications.
const requestTimeout = 8 * time.Second

// setUp starts what there is before the first fault.
func (r *soakRun) setUp() {
	ctx := r.b.T.Context()
	admin := r.b.Connect()
	var members []*share.Consumer
	for _, topic := range []string{"in", "other"} {
		_, err := r.b.Sandbox.Load(ctx, topic, strings.NewReader(strings.Repeat("x\n", r.plan.records[topic])), sandbox.LoadOptions{})
		r.b.Check(err)
	}
	for _, g := range r.plan.groups {
		r.b.Check(admin.SetGroupConfig(ctx, g.id, "share.auto.offset.reset", "earliest"))
		// A fetch that waits costs nothing in virtual time, and many short ones do.
		m, err := share.NewConsumer(ctx, r.b.Connect(), share.Config{GroupID: g.id, Topics: g.topics, MaxRecords: 5, MaxWait: 10 * time.Second})
		r.b.Check(err)
		r.b.AtEnd(func(ctx context.Context) { _ = m.Close(ctx) }) // the sandbox ends as well
		members = append(members, m)
	}
	for _, a := range r.plan.apps {
		r.apps = append(r.apps, &soakApp{
			soakAppPlan: a, r: r, cl: r.b.Connect(), member: members[a.group], topics: r.plan.groups[a.group].topics,
			now: producer{-1, -1}, former: producer{-1, -1},
		})
	}
}

func (a *soakApp) run() {
	if !a.r.wait(a.at) {
		return
	}
	for _, s := range a.steps {
		if !a.r.wait(s.after) {
			return
		}
		if s.do == doDie {
			a.note(s.do, "", nil)
			return
		}
		a.do(s)
	}
}

func (a *soakApp) do(s soakStep) {
	a.rests(false)
	ctx, cancel := context.WithTimeout(a.r.b.T.Context(), requestTimeout)
	defer cancel()
	switch s.do {
	case doStage:
		detail, err := a.stage(ctx, s)
		a.note(s.do, detail, err)
	case doCommit, doAbort:
		a.note(s.do, fmt.Sprintf("%d/%d", a.now.id, a.now.epoch), a.end(ctx, s.do == doCommit))
	case doFence:
		err := a.init(ctx)
		a.note(s.do, fmt.Sprintf("is %d/%d", a.now.id, a.now.epoch), err)
	case doZombie:
		a.now, a.former = a.former, a.now
		a.note(s.do, fmt.Sprintf("is %d/%d", a.now.id, a.now.epoch), nil)
	case doTimeOut:
		a.note(s.do, "", nil)
		if a.timeout < twoPhase {
			a.r.wait(a.timeout + 2*time.Second)
		}
	case doDie:
	}
}

func (a *soakApp) note(do soakDo, detail string, err error) {
	what := string(do)
	switch do {
	case doStage, doCommit, doAbort, doFence:
		what += map[bool]string{true: " ok", false: " failed"}[err == nil]
	case doZombie, doDie, doTimeOut:
	}
	a.r.tally.count("applications", what)
	if err != nil {
		detail += ": " + err.Error()
	}
	a.r.event("%s: %s %s", a.id, what, detail)
}

func (a *soakApp) init(ctx context.Context) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &a.id, int32(a.timeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = -1, -1
	for {
		kresp, err := a.cl.Request(ctx, req)
		if err != nil {
			return err
		}
		resp := kresp.(*kmsg.InitProducerIDResponse)
		switch resp.ErrorCode {
		case 0:
			a.former, a.now = a.now, producer{resp.ProducerID, resp.ProducerEpoch}
			return nil
		case kerr.ConcurrentTransactions.Code: // the last transaction is being aborted
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
				return kerr.ConcurrentTransactions
			}
		default:
			return kerr.ErrorForCode(resp.ErrorCode)
		}
	}
}

// stage stages what the member has to give. After an error the producer is in
// doubt, and goes on all the same.
func (a *soakApp) stage(ctx context.Context, s soakStep) (string, error) {
	if a.now.id < 0 {
		if err := a.init(ctx); err != nil {
			return "", fmt.Errorf("init: %w", err)
		}
	}
	pollCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	batch, err := a.member.Poll(pollCtx, s.n)
	if err != nil {
		return "poll", err
	}
	group := a.member.GroupMetadata()
	requests, meant := make(map[int32]*wire.TxnShareAcknowledgeRequest), make(map[int32][]place)
	text := fmt.Sprintf("%d/%d %s", a.now.id, a.now.epoch, s.how)
	for _, p := range batch.Partitions {
		var acks share.Acknowledgements
		for _, r := range p.Acquired {
			acks.AddRange(p.TopicPartition, r.Range, s.how)
			text += fmt.Sprintf(" %s/%s %d..%d", group.GroupID, p.TopicPartition, r.FirstOffset, r.LastOffset)
		}
		batches, err := acks.Batches(p.TopicPartition)
		if err != nil {
			return text, err
		}
		req := requests[p.Leader]
		if req == nil {
			req = wire.NewTxnShareAcknowledgeRequest(a.r.plan.dialect)
			req.TransactionalID, req.ProducerID, req.ProducerEpoch = &a.id, a.now.id, a.now.epoch
			req.GroupID, req.MemberID, req.MemberEpoch = group.GroupID, group.MemberID, group.MemberEpoch
			requests[p.Leader] = req
		}
		req.Topics = append(req.Topics, wire.TxnShareAcknowledgeRequestTopic{
			TopicID:    p.TopicID,
			Partitions: []wire.TxnShareAcknowledgeRequestTopicPartition{{Partition: p.Partition, AcknowledgementBatches: batches}},
		})
		meant[p.Leader] = append(meant[p.Leader], place{
			group.GroupID, p.Topic, wire.ShareStatePartition(group.GroupID, p.TopicID, p.Partition, a.r.plan.statePartitions),
		})
	}
	for node, req := range requests {
		a.mean(meant[node])
		if err := a.send(ctx, node, req); err != nil {
			return text, err
		}
	}
	return text, nil
}

// mean notes where the transaction is going to stage.
func (a *soakApp) mean(places []place) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	if a.r.meant[a.now] == nil {
		a.r.meant[a.now] = make(map[place]bool)
	}
	for _, p := range places {
		a.r.meant[a.now][p] = true
	}
}

func (a *soakApp) send(ctx context.Context, node int32, req *wire.TxnShareAcknowledgeRequest) error {
	a.unanswered(1)
	kresp, err := a.cl.RequestBroker(ctx, node, req)
	if err != nil {
		return err
	}
	a.unanswered(-1)
	resp := kresp.(*wire.TxnShareAcknowledgeResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *soakApp) unanswered(n int) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.unanswered[a.now] += n
}

func (a *soakApp) end(ctx context.Context, commit bool) error {
	if a.now.id < 0 {
		return fmt.Errorf("there is no producer")
	}
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = a.id, a.now.id, a.now.epoch, commit
	kresp, err := a.cl.Request(ctx, req)
	if err == nil {
		err = kerr.ErrorForCode(kresp.(*kmsg.EndTxnResponse).ErrorCode)
	}
	was := a.now
	a.former, a.now = was, producer{-1, -1}
	if err != nil {
		return err
	}
	resp := kresp.(*kmsg.EndTxnResponse)
	a.now = producer{resp.ProducerID, resp.ProducerEpoch}
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	a.r.ended[was] = map[bool]string{true: "committed", false: "aborted"}[commit]
	a.r.rests[was] = !a.forgotten()
	return nil
}

// rests notes that the transactional ID is going to do something.
func (a *soakApp) rests(is bool) {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	for _, p := range []producer{a.now, a.former} {
		a.r.rests[p] = is
	}
}

// forgotten reports whether the coordinator forgets the transactional ID, now or
// later, and so how its last transaction ended.
func (a *soakApp) forgotten() bool {
	return slices.ContainsFunc(a.r.plan.faults, func(f soakFault) bool {
		return f.Kind == sandbox.FaultForgetTransaction && f.TransactionalID == a.id
	})
}
