package ctp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/itchyny/gojq"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Transform makes of one source record the records to produce, of which there
// may be none. It may return the record it was given. The destination topic is
// set by the caller. An error means that the record cannot be transformed; it
// never means that a broker failed.
type Transform func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error)

// RecordError says that one record could not be transformed.
type RecordError struct {
	Topic     string
	Partition int32
	Offset    int64
	Err       error
}

// Error names the record.
func (e *RecordError) Error() string {
	return fmt.Sprintf("transform record at offset %d of %s-%d: %v", e.Offset, e.Topic, e.Partition, e.Err)
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// Hint says which settings decide about such records.
func (e *RecordError) Hint() string {
	return "nothing of its batch was committed; --on-error reject archives such records, --on-error release gives them back"
}

// ErrTooManyOutputs is why a record is refused whose jq expression yields more
// than 10,000 values.
var ErrTooManyOutputs = errors.New("the expression yields more than 10000 values")

const maxOutputs = 10_000

// ErrTooLarge is why a record is refused that the destination topic does not
// take.
var ErrTooLarge = errors.New("the result is too large")

// ErrNoKey is why a record is refused that has no key where the destination topic
// is compacted.
var ErrNoKey = errors.New("the result has no key")

// JQ returns a transform that runs a jq expression on the value of each record,
// which has to be one JSON value. Each result is the value of one record to
// produce, with the key, the headers and the timestamp of its source; no result
// acknowledges the source without producing. A null value, a tombstone, passes
// unchanged. Numbers keep all their digits unless the expression calculates with
// them. It may return an error that says where the expression is wrong.
func JQ(expression string) (Transform, error) {
	query, err := gojq.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("jq expression %q: %w", expression, err)
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, fmt.Errorf("jq expression %q: %w", expression, err)
	}
	return func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
		if r.Value == nil {
			return []*kgo.Record{r}, nil
		}
		in, err := decodeJSON(r.Value)
		if err != nil {
			return nil, err
		}
		return runJQ(ctx, code, in, r)
	}, nil
}

func runJQ(ctx context.Context, code *gojq.Code, in any, r *kgo.Record) ([]*kgo.Record, error) {
	var out []*kgo.Record
	for iter := code.RunWithContext(ctx, in); ; {
		v, ok := iter.Next()
		if !ok {
			return out, nil
		}
		if err, ok := v.(error); ok {
			if halt, ok := errors.AsType[*gojq.HaltError](err); ok && halt.Value() == nil {
				return out, nil
			}
			return nil, fmt.Errorf("jq: %w", shortened{err})
		}
		if len(out) == maxOutputs {
			return nil, ErrTooManyOutputs
		}
		value, err := gojq.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("jq: %w", err)
		}
		out = append(out, &kgo.Record{Key: r.Key, Value: value, Headers: r.Headers, Timestamp: r.Timestamp})
	}
}

// shortened is an error of jq, which may quote the whole record.
type shortened struct{ error }

const maxErrorText = 500

func (e shortened) Error() string {
	s := e.error.Error()
	if len(s) <= maxErrorText {
		return s
	}
	return strings.ToValidUTF8(s[:maxErrorText], "") + "..."
}

func (e shortened) Unwrap() error { return e.error }

// jsonDecoder decodes one value after the other. A json.Decoder that reads the
// next value has its buffer already, where a new one for each record would cost
// more memory than the record has.
type jsonDecoder struct {
	in  bytes.Reader
	dec *json.Decoder
}

// jsonDecoders holds decoders that are at the end of what they were given.
var jsonDecoders = sync.Pool{New: func() any {
	d := new(jsonDecoder)
	d.dec = json.NewDecoder(&d.in)
	d.dec.UseNumber()
	return d
}}

// trimEnd drops what may stand after a JSON value.
func trimEnd(b []byte) []byte {
	for n := len(b); n > 0; n-- {
		switch b[n-1] {
		case ' ', '\t', '\r', '\n':
		default:
			return b[:n]
		}
	}
	return nil
}

// decodeJSON reads exactly one JSON value and keeps numbers as they are written.
func decodeJSON(b []byte) (any, error) {
	b = trimEnd(b)
	d := jsonDecoders.Get().(*jsonDecoder)
	d.in.Reset(b)
	began := d.dec.InputOffset()
	var v any
	if err := d.dec.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the value is not JSON: it ends too early")
		}
		return nil, fmt.Errorf("the value is not JSON: %w", err)
	}
	if d.dec.InputOffset()-began != int64(len(b)) {
		return nil, errors.New("the value is not one JSON value: something follows it")
	}
	// One that has failed, or has something left, is of no use any more.
	d.in.Reset(nil)
	jsonDecoders.Put(d)
	return v, nil
}
