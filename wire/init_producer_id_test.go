package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestInitProducerIDRequest(t *testing.T) {
	r := NewInitProducerIDRequest()
	r.TransactionalID, r.TransactionTimeoutMillis = ptr("tx"), 60_000
	r.ProducerID, r.ProducerEpoch = 7, 3
	r.Enable2Pc, r.KeepPreparedTxn = true, false
	want := []byte{
		3, 't', 'x', // TransactionalId
		0, 0, 0xea, 0x60, // TransactionTimeoutMs
		0, 0, 0, 0, 0, 0, 0, 7, // ProducerId
		0, 3, // ProducerEpoch
		1, 0, // Enable2Pc, KeepPreparedTxn
		0, // tags
	}
	got := r.AppendTo(nil)
	if !bytes.Equal(got, want) {
		t.Fatalf("AppendTo = % x, want % x", got, want)
	}
	// Without what v6 adds it is what kmsg writes as v5.
	v5 := kmsg.NewPtrInitProducerIDRequest()
	v5.Version, v5.TransactionalID, v5.TransactionTimeoutMillis, v5.ProducerID, v5.ProducerEpoch = 5, r.TransactionalID, 60_000, 7, 3
	if b := v5.AppendTo(nil); !bytes.Equal(b[:len(b)-1], want[:len(want)-3]) {
		t.Errorf("v5 by kmsg = % x, v6 begins % x", b, want)
	}
	back := NewInitProducerIDRequest()
	if err := back.ReadFrom(got); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("ReadFrom = %+v, %v; want %+v", back, err, r)
	}
	if r.Key() != 22 || r.MaxVersion() != 6 || r.ResponseKind().Key() != 22 {
		t.Errorf("key %d, version %d", r.Key(), r.MaxVersion())
	}
}

func TestInitProducerIDResponse(t *testing.T) {
	r := &InitProducerIDResponse{Version: 6, ThrottleMillis: 1, ErrorCode: 2, ProducerID: 7, ProducerEpoch: 3, OngoingTxnProducerID: -1, OngoingTxnProducerEpoch: -1}
	want := []byte{
		0, 0, 0, 1,
		0, 2,
		0, 0, 0, 0, 0, 0, 0, 7,
		0, 3,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff,
		0,
	}
	got := r.AppendTo(nil)
	if !bytes.Equal(got, want) {
		t.Fatalf("AppendTo = % x, want % x", got, want)
	}
	back := &InitProducerIDResponse{Version: 6}
	if err := back.ReadFrom(got); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("ReadFrom = %+v, %v; want %+v", back, err, r)
	}
	if err := back.ReadFrom(got[:len(got)-2]); !errors.Is(err, ErrTruncated) {
		t.Errorf("ReadFrom of a part: %v, want %v", err, ErrTruncated)
	}
	if err := back.ReadFrom(append(got, 0)); !errors.Is(err, ErrTrailingBytes) {
		t.Errorf("ReadFrom of more: %v, want %v", err, ErrTrailingBytes)
	}
}

func FuzzInitProducerID(f *testing.F) {
	f.Add(NewInitProducerIDRequest().AppendTo(nil))
	f.Add((&InitProducerIDResponse{}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		// Reading makes something that is written and read as the same again.
		check := func(a, b interface {
			ReadFrom(src []byte) error
			AppendTo(dst []byte) []byte
		},
		) {
			if a.ReadFrom(in) != nil {
				return
			}
			if err := b.ReadFrom(a.AppendTo(nil)); err != nil || !bytes.Equal(a.AppendTo(nil), b.AppendTo(nil)) {
				t.Fatalf("%T of % x: read again as %+v, %v; want %+v", a, in, b, err, a)
			}
		}
		check(NewInitProducerIDRequest(), NewInitProducerIDRequest())
		check(new(InitProducerIDResponse), new(InitProducerIDResponse))
	})
}
