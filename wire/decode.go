package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a decoder of this package may return, wrapped with the name of the
// message. [ErrTruncated] also stands for a length or a count that the bytes
// which follow cannot hold.
var (
	ErrTruncated          = errors.New("truncated")
	ErrTrailingBytes      = errors.New("bytes after the end")
	ErrNull               = errors.New("null where null is not allowed")
	ErrUnknownRecordType  = errors.New("unknown record type")
	ErrUnsupportedVersion = errors.New("unsupported version")
)

// decoder reads fields one after the other and keeps the first error. After an
// error every read returns zero, so that callers check once.
//
// Nothing is allocated from a length before that length is known to fit into
// the bytes that are left.
type decoder struct {
	r   kbin.Reader
	err error
}

func newDecoder(src []byte) decoder { return decoder{r: kbin.Reader{Src: src}} }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.r = kbin.Reader{}
}

// ok turns the reader's own state into an error.
func (d *decoder) ok() bool {
	if d.err == nil && !d.r.Ok() {
		d.fail(ErrTruncated)
	}
	return d.err == nil
}

// finish returns the first error, or ErrTrailingBytes if not all was read.
func (d *decoder) finish() error {
	if d.ok() && len(d.r.Src) > 0 {
		d.fail(fmt.Errorf("%w: %d", ErrTrailingBytes, len(d.r.Src)))
	}
	return d.err
}

// count reads the length of a compact array whose elements take at least
// minSize bytes each.
func (d *decoder) count(minSize int) int {
	n := int64(d.r.Uvarint()) - 1
	switch {
	case !d.ok():
		return 0
	case n < 0:
		d.fail(ErrNull)
		return 0
	case n > int64(len(d.r.Src)/minSize):
		d.fail(ErrTruncated)
		return 0
	}
	return int(n)
}

// compactString reads a compact string that must not be null.
func (d *decoder) compactString() string {
	s := d.compactNullableString()
	if s == nil {
		if d.ok() {
			d.fail(ErrNull)
		}
		return ""
	}
	return *s
}

// compactNullableString returns nil for null and after an error.
func (d *decoder) compactNullableString() *string {
	n := int64(d.r.Uvarint()) - 1
	switch {
	case !d.ok() || n < 0:
		return nil
	case n > int64(len(d.r.Src)):
		d.fail(ErrTruncated)
		return nil
	}
	s := string(d.r.Span(int(n)))
	return &s
}

// eachTag reads a tag section. The value given to fn is part of the source.
func (d *decoder) eachTag(fn func(tag uint32, value []byte)) {
	for n := d.r.Uvarint(); n > 0 && d.ok(); n-- {
		tag, size := d.r.Uvarint(), d.r.Uvarint()
		if !d.ok() {
			return
		}
		if uint64(size) > uint64(len(d.r.Src)) {
			d.fail(ErrTruncated)
			return
		}
		fn(tag, d.r.Span(int(size)))
	}
	d.ok()
}

// unknownTags reads a tag section of which no tag is known.
func (d *decoder) unknownTags() kmsg.Tags {
	if src := d.r.Src; len(src) > 0 && src[0] == 0 { // the common case
		d.r.Src = src[1:]
		return kmsg.Tags{}
	}
	var tags kmsg.Tags
	d.eachTag(func(tag uint32, value []byte) { tags.Set(tag, bytes.Clone(value)) })
	return tags
}

// appendTags appends a tag section that holds tags alone.
func appendTags(dst []byte, tags *kmsg.Tags) []byte {
	dst = kbin.AppendUvarint(dst, uint32(tags.Len()))
	return tags.AppendEach(dst)
}

// appendSized appends what fn appends, preceded by its size as the value of a
// tag is. fn must be free of side effects: it runs twice.
func appendSized(dst []byte, fn func([]byte) []byte) []byte {
	at := len(dst)
	size := len(fn(dst)) - at
	return fn(kbin.AppendUvarint(dst, uint32(size)))
}
