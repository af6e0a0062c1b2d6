package ctp

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// appendQuestion appends the line that asks a program about a record.
func appendQuestion(dst []byte, s *source) []byte {
	r := s.record
	dst = append(dst, `{"topic":`...)
	dst = appendText(dst, r.Topic)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(r.Partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `,"delivery_count":`...)
	dst = strconv.AppendInt(dst, int64(s.deliveries), 10)
	dst = append(dst, `,"timestamp_ms":`...)
	dst = strconv.AppendInt(dst, r.Timestamp.UnixMilli(), 10)
	dst = append(dst, `,"key":`...)
	dst = appendBytes(dst, r.Key)
	dst = append(dst, `,"value":`...)
	dst = appendBytes(dst, r.Value)
	dst = append(dst, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = appendText(dst, h.Key)
		dst = append(dst, `,"value":`...)
		dst = appendBytes(dst, h.Value)
		dst = append(dst, '}')
	}
	return append(dst, "]}\n"...)
}

// appendBytes appends null, a string, or bytes that are no UTF-8 as base64.
func appendBytes(dst, b []byte) []byte {
	switch {
	case b == nil:
		return append(dst, "null"...)
	case utf8.Valid(b):
		return appendString(dst, b)
	}
	dst = append(dst, `{"encoding":"base64","value":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

// appendText is appendBytes for a string.
func appendText(dst []byte, s string) []byte { return appendBytes(dst, []byte(s)) }

// appendString appends valid UTF-8 as a JSON string. Line and paragraph
// separators stay: a program that splits lines at them reads no JSON lines.
func appendString(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	from := plainPrefix(b)
	for i, c := range b[from:] {
		i += from
		if c >= ' ' && c != '"' && c != '\\' && c != 0x7f {
			continue
		}
		dst = append(dst, b[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	dst = append(dst, b[start:]...)
	return append(dst, '"')
}

// plainPrefix returns how many bytes of b certainly need no escape, a multiple of
// 8: most often all but a few.
func plainPrefix(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	zero := func(x uint64) uint64 { return (x - ones) & ^x } // the top bit of the first byte that is 0
	n := 0
	for ; n+8 <= len(b); n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		control := (x - ones*' ') & ^x
		if (control|zero(x^ones*'"')|zero(x^ones*'\\')|zero(x^ones*0x7f))&tops != 0 {
			break
		}
	}
	return n
}

// answer is one record that a program answers with. What it leaves out is nil.
type answer struct {
	Topic     *string       `json:"topic"`
	Partition *int32        `json:"partition"`
	Offset    *int64        `json:"offset"`
	Timestamp *int64        `json:"timestamp_ms"`
	Key       optionalBytes `json:"key"`
	Value     optionalBytes `json:"value"`
	Headers   *[]answerPair `json:"headers"`
	Error     *string       `json:"error"`
}

type answerPair struct {
	Key   string        `json:"key"`
	Value optionalBytes `json:"value"`
}

// optionalBytes are bytes that may be left out, and may be null.
type optionalBytes struct {
	set bool
	b   []byte
}

// UnmarshalJSON reads null, a string, or an object with an encoding.
func (o *optionalBytes) UnmarshalJSON(in []byte) error {
	o.set = true
	switch in[0] {
	case 'n':
		o.b = nil
		return nil
	case '"':
		// What stands between the quotes is most often what it means.
		if plain := in[1 : len(in)-1]; !bytes.ContainsRune(plain, '\\') && utf8.Valid(plain) {
			o.b = append([]byte{}, plain...)
			return nil
		}
		var s string
		if err := json.Unmarshal(in, &s); err != nil {
			return err
		}
		o.b = []byte(s)
		return nil
	case '{':
		var e struct {
			Encoding string  `json:"encoding"`
			Value    *string `json:"value"`
		}
		if err := json.Unmarshal(in, &e); err != nil {
			return err
		}
		if e.Encoding != "base64" || e.Value == nil {
			return errors.New(`an object for bytes has to be {"encoding":"base64","value":"..."}`)
		}
		b, err := base64.StdEncoding.DecodeString(*e.Value)
		if err != nil {
			return fmt.Errorf("base64: %w", err)
		}
		o.b = b
		return nil
	}
	return errors.New("keys and values have to be strings, null, or base64 objects; JSON goes into a string")
}

// stepError says that a program answers for another record than the one asked
// about: nothing that it says can be used.
type stepError struct{ msg string }

func (e *stepError) Error() string { return e.msg }

// parseAnswer reads the line that answers for src, which was asked about with
// question. It fails with *stepError, or with what is wrong with the answer, or
// with the error that it holds.
func parseAnswer(line, question []byte, src *kgo.Record) ([]*kgo.Record, error) {
	if bytes.Equal(line, question) { // what a program passes on is most often the most
		return []*kgo.Record{src}, nil
	}
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil, errors.New("the answer is an empty line; [] stands for no record")
	}
	if line[0] != '[' {
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			return nil, fmt.Errorf("the answer is not what it has to be: %w", shortened{err})
		}
		r, err := a.record(src)
		if err != nil {
			return nil, err
		}
		return []*kgo.Record{r}, nil
	}
	var list []answer
	if err := json.Unmarshal(line, &list); err != nil {
		return nil, fmt.Errorf("the answer is not what it has to be: %w", shortened{err})
	}
	if len(list) > maxOutputs {
		return nil, fmt.Errorf("the answer has %d records, more than %d", len(list), maxOutputs)
	}
	out := make([]*kgo.Record, 0, len(list))
	for i := range list {
		r, err := list[i].record(src)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (a *answer) record(src *kgo.Record) (*kgo.Record, error) {
	if a.Offset != nil && *a.Offset != src.Offset || a.Partition != nil && *a.Partition != src.Partition || a.Topic != nil && *a.Topic != src.Topic {
		return nil, &stepError{fmt.Sprintf("it answers for another record than the one at offset %d of %s-%d: it has to answer each line with one line, in order", src.Offset, src.Topic, src.Partition)}
	}
	if a.Error != nil {
		return nil, fmt.Errorf("the program says: %s", *a.Error)
	}
	r := &kgo.Record{Key: src.Key, Value: src.Value, Headers: src.Headers, Timestamp: src.Timestamp}
	if a.Key.set {
		r.Key = a.Key.b
	}
	if a.Value.set {
		r.Value = a.Value.b
	}
	if a.Timestamp != nil {
		r.Timestamp = time.UnixMilli(*a.Timestamp)
	}
	if a.Headers != nil {
		r.Headers = make([]kgo.RecordHeader, 0, len(*a.Headers))
		for _, h := range *a.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value.b})
		}
	}
	return r, nil
}
