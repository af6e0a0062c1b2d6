package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// Cluster is what this package needs of a connection; [cluster.Client] has it.
// All of it is called concurrently.
type Cluster interface {
	// Describe asks every broker for its ApiVersions.
	Describe(ctx context.Context) (cluster.Description, error)
	// Request sends a request to whichever broker serves it.
	Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	// RequestBroker sends a request to one broker, once.
	RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error)
	// Topics describes the named topics; an error of one fails the call.
	Topics(ctx context.Context, names ...string) (map[string]cluster.Topic, error)
	// AllTopics describes the topics that this principal may describe.
	AllTopics(ctx context.Context) ([]cluster.Topic, error)
	// ReadPartition reads a partition from its start to its high watermark.
	ReadPartition(ctx context.Context, topic cluster.Topic, partition int32, fn func(*kgo.Record)) error
}

// inFlight is how many requests of one collector are in flight at once, over all
// brokers.
const inFlight = 8

// each calls fn for every item, limit of them at a time, and returns when all
// calls have returned.
func each[T any](items []T, limit int, fn func(T)) {
	var g errgroup.Group
	g.SetLimit(limit)
	for _, item := range items {
		g.Go(func() error {
			fn(item)
			return nil
		})
	}
	_ = g.Wait()
}

// askTimeout bounds the wait for one answer, and half of what is left of ctx if
// that is less, so that one silent broker leaves time for the others.
const askTimeout = 10 * time.Second

func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := askTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2) //nolint:forbidigo // a context's deadline is by the real clock
	}
	return context.WithTimeout(ctx, limit)
}

// ask sends a request that changes nothing to one broker. It is sent again when
// the connection broke, which may have been idle for too long.
func ask[R kmsg.Response](ctx context.Context, cl Cluster, node int32, req kmsg.Request) (R, error) {
	resp, err := askOnce[R](ctx, cl, node, req)
	if err != nil && ctx.Err() == nil && brokenConnection(err) {
		return askOnce[R](ctx, cl, node, req)
	}
	return resp, err
}

func askOnce[R kmsg.Response](ctx context.Context, cl Cluster, node int32, req kmsg.Request) (R, error) {
	var none R
	ctx, cancel := limited(ctx)
	defer cancel()
	kresp, err := cl.RequestBroker(ctx, node, req)
	if err != nil {
		return none, err
	}
	resp, ok := kresp.(R)
	if !ok {
		return none, fmt.Errorf("response of type %T", kresp)
	}
	return resp, nil
}

// brokenConnection reports whether a request went to a connection that was, or
// became, closed. A broker that does not answer, or cannot be dialled, is another
// matter.
func brokenConnection(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	return cluster.IsUnanswered(err) && !isTimeout(err)
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// sparing is a cluster in which a broker that once did not answer is not asked
// again: each further request would be waited for as long. It is for one look.
type sparing struct {
	Cluster
	mu        sync.Mutex
	silent    map[int32]bool
	described *cluster.Description // by Describe; nil before that
}

// newSparing returns a cluster for one look, which cl is if it is one already: a
// look may be a part of another.
func newSparing(cl Cluster) *sparing {
	if s, ok := cl.(*sparing); ok {
		return s
	}
	return &sparing{Cluster: cl, silent: make(map[int32]bool)}
}

// Describe asks every broker once.
func (s *sparing) Describe(ctx context.Context) (cluster.Description, error) {
	s.mu.Lock()
	known := s.described
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	d, err := s.Cluster.Describe(ctx)
	if err != nil {
		return d, err
	}
	for _, b := range d.Brokers {
		s.note(b.NodeID, b.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.described = &d
	return d, nil
}

var errSilent error = silentError{}

// silentError is a timeout of its own: the request that went unanswered had one.
type silentError struct{}

func (silentError) Error() string   { return "it did not answer another request" }
func (silentError) Timeout() bool   { return true }
func (silentError) Temporary() bool { return true }

// RequestBroker sends a request to a broker that has answered so far.
func (s *sparing) RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	if s.isSilent(node) {
		return nil, errSilent
	}
	resp, err := s.Cluster.RequestBroker(ctx, node, req)
	s.note(node, err)
	return resp, err
}

// ReadPartition reads from a leader that has answered so far.
func (s *sparing) ReadPartition(ctx context.Context, topic cluster.Topic, partition int32, fn func(*kgo.Record)) error {
	if leader := topic.Leader(partition); s.isSilent(leader) {
		return &cluster.Error{Op: "read", Broker: leader, Topic: topic.Name, Partition: partition, Err: errSilent}
	}
	err := s.Cluster.ReadPartition(ctx, topic, partition, fn)
	if e, ok := errors.AsType[*cluster.Error](err); ok {
		s.note(e.Broker, err)
	}
	return err
}

func (s *sparing) isSilent(node int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[node]
}

func (s *sparing) note(node int32, err error) {
	if err == nil || !isTimeout(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[node] = true
}

// tries is how often a request goes to the coordinator or leader of something
// that moves, and its place is looked up in between.
const tries = 4

// backoff is how long to wait before a try, counted from 1 for the first one
// after a failure. A coordinator that moved is loaded within a second or so.
func backoff(try int) time.Duration { return 250 * time.Millisecond << (try - 1) }

// lastTry reports whether there is to be no other try after this one: there were
// enough, or so little of ctx is left that what else there is to ask would not be
// answered any more. Half an answer is worth more than none.
func lastTry(ctx context.Context, try int) bool {
	if try == tries {
		return true
	}
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline)/4 < backoff(try) //nolint:forbidigo // a context's deadline is by the real clock
}

// movedCoordinator reports whether an error says that another broker is, or this
// one will soon be, the coordinator.
func movedCoordinator(code int16) bool {
	switch code {
	case kerr.NotCoordinator.Code, kerr.CoordinatorLoadInProgress.Code, kerr.CoordinatorNotAvailable.Code:
		return true
	}
	return false
}

// gapList collects gaps from several goroutines. What is the same but for the
// source is said once.
type gapList struct {
	mu   sync.Mutex
	gaps []Gap
}

func (l *gapList) add(gaps ...Gap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range gaps {
		if !slices.ContainsFunc(l.gaps, func(o Gap) bool { return o.Reason == g.Reason && equal(o.Broker, g.Broker) }) {
			l.gaps = append(l.gaps, g)
		}
	}
}

// sorted returns what was collected in an order that does not depend on which
// broker was the quickest.
func (l *gapList) sorted() []Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(l.gaps, func(a, b Gap) int {
		if c := brokerOf(a) - brokerOf(b); c != 0 {
			return int(c)
		}
		return strings.Compare(a.Reason, b.Reason)
	})
	return l.gaps
}

func brokerOf(g Gap) int32 {
	if g.Broker == nil {
		return -1
	}
	return *g.Broker
}

func equal[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// newGap returns the gap that a broker's error, or its silence, leaves. what says
// what it did not do, such as "list its transactions".
func newGap(source Source, node int32, what string, err error) Gap {
	g := ErrorGap(source, fmt.Sprintf("broker %d did not %s", node, what), err)
	g.Broker = new(node)
	return g
}

// silentGap returns the gap of a broker that has not told its ApiVersions.
func silentGap(source Source, b cluster.BrokerVersions) Gap {
	g := newGap(source, b.NodeID, "answer", b.Err)
	g.Advice = fmt.Sprintf("start broker %d, or unregister it if it is gone for good", b.NodeID)
	return g
}

// aclGap returns the gap that a missing permission leaves. hidden says what it
// hides, such as "open transactions may be hidden".
func aclGap(source Source, acl ACL, code *kerr.Error, hidden string) Gap {
	return Gap{
		Source: source, ACL: &acl, KafkaError: code.Message, cause: code,
		Reason: fmt.Sprintf("this principal lacks %s (%s), so %s", acl, code.Message, hidden),
		Advice: "grant it: " + acl.grant(),
	}
}

// The permissions that the whole picture needs.
var (
	aclTransactionalIDs = ACL{"DESCRIBE", "TRANSACTIONAL_ID", "*"}
	aclGroups           = ACL{"DESCRIBE", "GROUP", "*"}
	aclTopics           = ACL{"DESCRIBE", "TOPIC", "*"}
	aclDescribeState    = ACL{"DESCRIBE", "TOPIC", stateTopic}
	aclReadState        = ACL{"READ", "TOPIC", stateTopic}
	aclClusterAction    = ACL{"CLUSTER_ACTION", "CLUSTER", "kafka-cluster"}
)

// grant is the command of Kafka's own tool that gives the permission.
func (a ACL) grant() string {
	operation := map[string]string{"CLUSTER_ACTION": "ClusterAction", "DESCRIBE": "Describe", "DESCRIBE_CONFIGS": "DescribeConfigs", "READ": "Read"}[a.Operation]
	resource := map[string]string{
		"CLUSTER": "--cluster", "GROUP": "--group", "TOPIC": "--topic", "TRANSACTIONAL_ID": "--transactional-id",
	}[a.ResourceType]
	if a.ResourceType != "CLUSTER" {
		resource += " '" + strings.ReplaceAll(a.ResourceName, "'", `'\''`) + "'"
	}
	return fmt.Sprintf("bin/kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:NAME --operation %s %s", operation, resource)
}
