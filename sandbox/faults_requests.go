package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Faults in requests of clients: they are looked for before a request is
// handled, in the order frozen broker, coordinator that hangs, coordinator that
// fails, error to answer.

// errLostResponse closes a connection in the place of an answer.
var errLostResponse = errors.New("the response is lost, by a fault")

// fault lets faults strike a request. It returns true if the request is answered
// with that; an error closes the connection.
func (c *gatewayConn) fault(r *request, req kmsg.Request) (bool, error) {
	t := c.g.faults
	if !t.any() {
		return false, nil
	}
	if err := c.awaitThaw(); err != nil {
		return true, err
	}
	to := c.g.coordinatorOf(req)
	selects := func(f *Fault) bool {
		return (f.Broker == nil || *f.Broker == c.node.id) && to.selectedBy(f)
	}
	if to.coordinator != "" {
		if f := t.strike(FaultHangCoordinator, true, selects); f != nil && !t.await(c.g.ctx, f, c.gone) {
			return true, io.EOF
		}
		if f := t.strike(FaultFailCoordinator, false, selects); f != nil {
			return true, c.respondError(r, req, coordinatorCode(f))
		}
	}
	byKey := func(f *Fault) bool {
		return *f.APIKey == r.key && (f.Broker == nil || *f.Broker == c.node.id) &&
			(f.TransactionalID == "" || slices.Contains(to.transactionalIDs, f.TransactionalID))
	}
	if f := t.strike(FaultAnswerError, false, byKey); f != nil {
		return true, c.respondError(r, req, errorCodeOf(f.Error))
	}
	c.lose = t.strike(FaultLoseResponse, false, byKey) != nil
	return false, nil
}

// awaitThaw waits while the broker is frozen.
func (c *gatewayConn) awaitThaw() error {
	t := c.g.faults
	f := t.strike(FaultFreezeBroker, true, func(f *Fault) bool { return *f.Broker == c.node.id })
	if f != nil && !t.await(c.g.ctx, f, c.gone) {
		return io.EOF
	}
	return nil
}

// deliver returns whether a response may be written now.
func (c *gatewayConn) deliver() error {
	switch {
	case c.lose:
		return errLostResponse
	case c.g.faults.any():
		return c.awaitThaw()
	}
	return nil
}

// coordinatorCode is what a coordinator that fails answers.
func coordinatorCode(f *activeFault) int16 {
	if f.Error == "" {
		return kerr.CoordinatorNotAvailable.Code
	}
	return errorCodeOf(f.Error)
}

// coordinated is what a request asks of a coordinator.
type coordinated struct {
	coordinator      string // "" for none
	transactionalIDs []string
	statePartitions  []int32
}

func (c coordinated) selectedBy(f *Fault) bool {
	return f.Coordinator == c.coordinator &&
		(f.TransactionalID == "" || slices.Contains(c.transactionalIDs, f.TransactionalID)) &&
		(f.StatePartition == nil || slices.Contains(c.statePartitions, *f.StatePartition))
}

// coordinatorOf says which coordinator a request is for. The transactional IDs
// of requests to others are told as well.
func (g *gateway) coordinatorOf(req kmsg.Request) coordinated {
	txn := func(ids ...string) coordinated {
		return coordinated{coordinator: CoordinatorTransaction, transactionalIDs: ids}
	}
	switch req := req.(type) {
	case *kmsg.InitProducerIDRequest:
		if req.TransactionalID != nil {
			return txn(*req.TransactionalID)
		}
	case *kmsg.AddPartitionsToTxnRequest:
		return txn(req.TransactionalID)
	case *kmsg.AddOffsetsToTxnRequest:
		return txn(req.TransactionalID)
	case *kmsg.EndTxnRequest:
		return txn(req.TransactionalID)
	case *kmsg.DescribeTransactionsRequest:
		return txn(req.TransactionalIDs...)
	case *kmsg.ListTransactionsRequest:
		return txn()
	case *wire.TxnShareAcknowledgeRequest:
		if req.TransactionalID != nil {
			return coordinated{transactionalIDs: []string{*req.TransactionalID}}
		}
	case *kmsg.ProduceRequest:
		if req.TransactionID != nil {
			return coordinated{transactionalIDs: []string{*req.TransactionID}}
		}
	case *kmsg.TxnOffsetCommitRequest:
		return coordinated{transactionalIDs: []string{req.TransactionalID}}
	case *kmsg.InitializeShareGroupStateRequest, *kmsg.ReadShareGroupStateRequest, *kmsg.WriteShareGroupStateRequest,
		*kmsg.DeleteShareGroupStateRequest, *kmsg.ReadShareGroupStateSummaryRequest:
		return coordinated{coordinator: CoordinatorShare, statePartitions: g.statePartitionsOf(req)}
	}
	return coordinated{}
}

// statePartitionsOf returns the partitions of __share_group_state that a request
// to the share coordinator is about.
func (g *gateway) statePartitionsOf(req kmsg.Request) []int32 {
	t, ok := g.kafka.topicByName(stateTopic)
	if !ok {
		return nil
	}
	v := reflect.ValueOf(req).Elem()
	group := v.FieldByName("GroupID").String()
	var out []int32
	topics := v.FieldByName("Topics")
	for i := range topics.Len() {
		rt := topics.Index(i)
		id := rt.FieldByName("TopicID").Interface().([16]byte)
		partitions := rt.FieldByName("Partitions")
		for j := range partitions.Len() {
			p := int32(partitions.Index(j).FieldByName("Partition").Int())
			out = append(out, wire.ShareStatePartition(group, id, p, t.partitions))
		}
	}
	return out
}

// respondError answers a request with an error.
func (c *gatewayConn) respondError(r *request, req kmsg.Request, code int16) error {
	resp, ok := errorResponse(req, code)
	if !ok {
		return fmt.Errorf("%s: no answer to it has an error: %s", kmsg.NameForKey(r.key), errorName(code))
	}
	return c.respond(r, resp)
}

// answersWithErrors reports whether a response to req can carry an error code.
func answersWithErrors(req kmsg.Request) bool {
	return hasErrorCode(reflect.TypeOf(req.ResponseKind()).Elem())
}

func hasErrorCode(t reflect.Type) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "ErrorCode" && f.Type.Kind() == reflect.Int16 {
			return true
		}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && hasErrorCode(f.Type.Elem()) {
			return true
		}
	}
	return false
}

// errorResponse returns a response that has code at its top, and for each thing
// that the request names: which of them is sent depends on the version. It
// returns false if it can have neither.
func errorResponse(req kmsg.Request, code int16) (kmsg.Response, bool) {
	resp := req.ResponseKind()
	ok := fillError(reflect.ValueOf(resp).Elem(), reflect.ValueOf(req).Elem(), code)
	switch resp := resp.(type) { // what a client must not take for an answer
	case *kmsg.InitProducerIDResponse:
		resp.ProducerID, resp.ProducerEpoch = -1, -1
	case *kmsg.EndTxnResponse:
		resp.ProducerID, resp.ProducerEpoch = -1, -1
	}
	return resp, ok
}

// fillError sets the error code of dst, and of the elements that dst has for each
// element of src.
func fillError(dst, src reflect.Value, code int16) bool {
	copyNames(dst, src)
	done := false
	if f := dst.FieldByName("ErrorCode"); f.IsValid() && f.Kind() == reflect.Int16 {
		f.SetInt(int64(code))
		done = true
	}
	for i := range dst.NumField() {
		list := dst.Field(i)
		if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Struct || !hasErrorCode(list.Type().Elem()) {
			continue
		}
		from := listFor(src, dst.Type().Field(i).Name)
		if !from.IsValid() {
			continue
		}
		for j := range from.Len() {
			e := reflect.New(list.Type().Elem())
			if d, ok := e.Interface().(interface{ Default() }); ok {
				d.Default()
			}
			if s := from.Index(j); s.Kind() == reflect.Struct {
				done = fillError(e.Elem(), s, code) || done
			} else {
				setKey(e.Elem(), s)
				if f := e.Elem().FieldByName("ErrorCode"); f.IsValid() {
					f.SetInt(int64(code))
					done = true
				}
			}
			list.Set(reflect.Append(list, e.Elem()))
		}
	}
	return done
}

// listFor returns the list of a request that a list of the response answers. Most
// have one name.
func listFor(src reflect.Value, name string) reflect.Value {
	for _, n := range []string{name, "Topics", "Groups", "TransactionalIDs", "CoordinatorKeys", "GroupIDs"} {
		if f := src.FieldByName(n); f.IsValid() && f.Kind() == reflect.Slice {
			return f
		}
	}
	return reflect.Value{}
}

// copyNames copies what names a thing: fields with one name and type in both.
func copyNames(dst, src reflect.Value) {
	for i := range dst.NumField() {
		f := dst.Type().Field(i)
		s := src.FieldByName(f.Name)
		if k := f.Type.Kind(); k == reflect.Slice || k == reflect.Struct || k == reflect.Map {
			continue
		}
		if s.IsValid() && s.Type() == f.Type && f.Name != "Version" && !strings.HasSuffix(f.Name, "Millis") {
			dst.Field(i).Set(s)
		}
	}
}

// setKey sets the first field of dst that can hold v, which is its key.
func setKey(dst, v reflect.Value) {
	for i := range dst.NumField() {
		f := dst.Type().Field(i)
		if f.Type == v.Type() && f.Name != "ErrorCode" {
			dst.Field(i).Set(v)
			return
		}
	}
}

// Faults between the brokers

// brokerRequestTimeout is how long a broker waits for another one.
const brokerRequestTimeout = 30 * time.Second

// coordinatorFault lets faults strike what a broker asks of a coordinator. It
// returns 0, the code of a coordinator that fails, or otherwise for one that
// does not answer in time.
func (t *faultTable) coordinatorFault(ctx context.Context, to coordinated, noAnswer int16) int16 {
	if !t.any() {
		return 0
	}
	// Which broker asks is not known here: a fault of one broker is in its
	// requests of clients alone.
	selects := func(f *Fault) bool { return f.Broker == nil && to.selectedBy(f) }
	if f := t.strike(FaultHangCoordinator, true, selects); f != nil {
		ctx, cancel := context.WithTimeout(ctx, brokerRequestTimeout)
		defer cancel()
		if !t.await(ctx, f, nil) {
			return noAnswer
		}
	}
	if f := t.strike(FaultFailCoordinator, false, selects); f != nil {
		return coordinatorCode(f)
	}
	return 0
}

// faultyCoordinator is the share coordinator as its callers meet it.
type faultyCoordinator struct {
	coordinator
	partitionFor func(shareStateKey) int32
	faults       *faultTable
}

func (c *faultyCoordinator) fault(ctx context.Context, keys ...shareStateKey) int16 {
	if !c.faults.any() {
		return 0
	}
	to := coordinated{coordinator: CoordinatorShare}
	for _, k := range keys {
		to.statePartitions = append(to.statePartitions, c.partitionFor(k))
	}
	return c.faults.coordinatorFault(ctx, to, kerr.CoordinatorNotAvailable.Code)
}

func (c *faultyCoordinator) initialize(ctx context.Context, k shareStateKey, stateEpoch int32, startOffset int64) int16 {
	if code := c.fault(ctx, k); code != 0 {
		return code
	}
	return c.coordinator.initialize(ctx, k, stateEpoch, startOffset)
}

func (c *faultyCoordinator) read(ctx context.Context, k shareStateKey, leaderEpoch int32) (shareState, int16) {
	if code := c.fault(ctx, k); code != 0 {
		return shareState{}, code
	}
	return c.coordinator.read(ctx, k, leaderEpoch)
}

// write fails as a whole: it is one append.
func (c *faultyCoordinator) write(ctx context.Context, writes []shareStateWrite) []int16 {
	keys := make([]shareStateKey, 0, len(writes))
	for _, w := range writes {
		keys = append(keys, w.shareStateKey)
	}
	if code := c.fault(ctx, keys...); code != 0 {
		return failCodes(make([]int16, len(writes)), code)
	}
	return c.coordinator.write(ctx, writes)
}

func (c *faultyCoordinator) remove(ctx context.Context, k shareStateKey) int16 {
	if code := c.fault(ctx, k); code != 0 {
		return code
	}
	return c.coordinator.remove(ctx, k)
}
