package wire

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerId v6 (KIP-939, read on 2026-11-29).
//
// It adds two-phase commit to what kmsg knows, which ends at v5: whether the
// coordinator is to leave transactions of this transactional ID alone, however
// long they take, and whether one that is open is to be kept. In released Kafka
// up to 4.4 the version is unstable and not advertised.
//
// Only v6 can be said here. A broker that has no v6 must not be sent this
// request: in v5 it would say nothing of two-phase commit, and be believed.

// InitProducerIDTwoPhase is the version of InitProducerId that two-phase commit
// needs.
const InitProducerIDTwoPhase int16 = 6

var (
	_ kmsg.Request          = (*InitProducerIDRequest)(nil)
	_ kmsg.Response         = (*InitProducerIDResponse)(nil)
	_ kmsg.ThrottleResponse = (*InitProducerIDResponse)(nil)
)

// InitProducerIDRequest is InitProducerId v6. It implements [kmsg.Request]; it is
// to be sent to the transaction coordinator. Brokers answer with an
// [InitProducerIDResponse].
type InitProducerIDRequest struct {
	Version int16 // not on the wire

	TransactionalID          *string
	TransactionTimeoutMillis int32
	ProducerID               int64 // -1 when none is known
	ProducerEpoch            int16 // -1 when none is known
	// Enable2Pc asks for transactions that do not time out.
	Enable2Pc bool
	// KeepPreparedTxn leaves an open transaction open, and answers whose it is.
	KeepPreparedTxn bool

	UnknownTags kmsg.Tags // tags of a newer schema
}

// NewInitProducerIDRequest returns a request with a producer ID and epoch of -1.
func NewInitProducerIDRequest() *InitProducerIDRequest {
	return &InitProducerIDRequest{Version: InitProducerIDTwoPhase, ProducerID: -1, ProducerEpoch: -1}
}

// Key returns the api key of InitProducerId.
func (r *InitProducerIDRequest) Key() int16 { return int16(kmsg.InitProducerID) }

// MaxVersion returns 6.
func (r *InitProducerIDRequest) MaxVersion() int16 { return InitProducerIDTwoPhase }

// SetVersion sets the version of the request and of its response.
func (r *InitProducerIDRequest) SetVersion(version int16) { r.Version = version }

// GetVersion returns the version of the request.
func (r *InitProducerIDRequest) GetVersion() int16 { return r.Version }

// IsFlexible returns true: v6 is flexible.
func (r *InitProducerIDRequest) IsFlexible() bool { return true }

// ResponseKind returns an empty response of the same version.
func (r *InitProducerIDRequest) ResponseKind() kmsg.Response {
	return &InitProducerIDResponse{Version: r.Version}
}

// AppendTo appends the body of the request to dst.
func (r *InitProducerIDRequest) AppendTo(dst []byte) []byte {
	dst = kbin.AppendCompactNullableString(dst, r.TransactionalID)
	dst = kbin.AppendInt32(dst, r.TransactionTimeoutMillis)
	dst = kbin.AppendInt64(dst, r.ProducerID)
	dst = kbin.AppendInt16(dst, r.ProducerEpoch)
	dst = kbin.AppendBool(dst, r.Enable2Pc)
	dst = kbin.AppendBool(dst, r.KeepPreparedTxn)
	return appendTags(dst, &r.UnknownTags)
}

// ReadFrom replaces all fields of the request by those in src, the body of a
// request. It may return [ErrTruncated] or [ErrTrailingBytes]; the fields are
// then undefined.
func (r *InitProducerIDRequest) ReadFrom(src []byte) error {
	d := newDecoder(src)
	r.TransactionalID = d.compactNullableString()
	r.TransactionTimeoutMillis = d.r.Int32()
	r.ProducerID = d.r.Int64()
	r.ProducerEpoch = d.r.Int16()
	r.Enable2Pc = d.r.Bool()
	r.KeepPreparedTxn = d.r.Bool()
	r.UnknownTags = d.unknownTags()
	if err := d.finish(); err != nil {
		return fmt.Errorf("InitProducerId request v6: %w", err)
	}
	return nil
}

// InitProducerIDResponse answers an [InitProducerIDRequest].
type InitProducerIDResponse struct {
	Version int16 // not on the wire

	ThrottleMillis int32
	ErrorCode      int16
	ProducerID     int64
	ProducerEpoch  int16
	// OngoingTxnProducerID and OngoingTxnProducerEpoch are of the transaction
	// that was kept open; -1 when there is none.
	OngoingTxnProducerID    int64
	OngoingTxnProducerEpoch int16

	UnknownTags kmsg.Tags // tags of a newer schema
}

// Key returns the api key of InitProducerId.
func (r *InitProducerIDResponse) Key() int16 { return int16(kmsg.InitProducerID) }

// MaxVersion returns 6.
func (r *InitProducerIDResponse) MaxVersion() int16 { return InitProducerIDTwoPhase }

// SetVersion sets the version of the response.
func (r *InitProducerIDResponse) SetVersion(version int16) { r.Version = version }

// GetVersion returns the version of the response.
func (r *InitProducerIDResponse) GetVersion() int16 { return r.Version }

// IsFlexible returns true: v6 is flexible.
func (r *InitProducerIDResponse) IsFlexible() bool { return true }

// Throttle returns how long the client is to wait, and that it waits after the
// response.
func (r *InitProducerIDResponse) Throttle() (int32, bool) { return r.ThrottleMillis, true }

// RequestKind returns an empty request of the same version.
func (r *InitProducerIDResponse) RequestKind() kmsg.Request {
	return &InitProducerIDRequest{Version: r.Version}
}

// AppendTo appends the body of the response to dst.
func (r *InitProducerIDResponse) AppendTo(dst []byte) []byte {
	dst = kbin.AppendInt32(dst, r.ThrottleMillis)
	dst = kbin.AppendInt16(dst, r.ErrorCode)
	dst = kbin.AppendInt64(dst, r.ProducerID)
	dst = kbin.AppendInt16(dst, r.ProducerEpoch)
	dst = kbin.AppendInt64(dst, r.OngoingTxnProducerID)
	dst = kbin.AppendInt16(dst, r.OngoingTxnProducerEpoch)
	return appendTags(dst, &r.UnknownTags)
}

// ReadFrom replaces all fields of the response by those in src, the body of a
// response. It may return [ErrTruncated] or [ErrTrailingBytes]; the fields are
// then undefined.
func (r *InitProducerIDResponse) ReadFrom(src []byte) error {
	d := newDecoder(src)
	r.ThrottleMillis = d.r.Int32()
	r.ErrorCode = d.r.Int16()
	r.ProducerID = d.r.Int64()
	r.ProducerEpoch = d.r.Int16()
	r.OngoingTxnProducerID = d.r.Int64()
	r.OngoingTxnProducerEpoch = d.r.Int16()
	r.UnknownTags = d.unknownTags()
	if err := d.finish(); err != nil {
		return fmt.Errorf("InitProducerId response v6: %w", err)
	}
	return nil
}
