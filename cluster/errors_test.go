package cluster

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

func TestJoin(t *testing.T) {
	a, b := errors.New("a"), &Error{Op: "b", Broker: 2, Err: kerr.NotLeaderForPartition}
	if err := Join(nil, nil); err != nil {
		t.Errorf("Join(nil, nil) = %v", err)
	}
	if err := Join(nil, a); !errors.Is(err, a) {
		t.Errorf("Join(nil, a) = %v, want a itself", err)
	}
	err := Join(a, b, errors.New("a"))
	if got, want := err.Error(), "a; b: broker 2: NOT_LEADER_FOR_PARTITION"; got != want {
		t.Errorf("Join(a, b, a) reads %q, want %q", got, want)
	}
	if e, ok := errors.AsType[*Error](err); !errors.Is(err, a) || !errors.Is(err, kerr.NotLeaderForPartition) || !ok || e != b {
		t.Errorf("Join(a, b) hides what it joins")
	}
}
