package txn

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
	"unicode/utf8"
)

// Token names one transaction, so that another process can commit or abort it
// with [Resume]. It holds no secret, and whoever may write to the transactional
// ID may use it. It is a value and never changes.
//
// A token has two forms: JSON, and a short text for command lines and database
// columns ([Token.String]) with a checksum. [ParseToken] reads both.
type Token struct {
	TransactionalID string
	ProducerID      int64    // 0 or more
	ProducerEpoch   int16    // 0 or more; of the transaction, not the next one
	ClusterID       string   // "" when the brokers do not say: then it is not compared
	Dialect         string   // name of the dialect that acknowledgements were staged in; "" when none could be
	GroupIDs        []string // share groups that acknowledgements were staged of, sorted; may be empty
	Created         time.Time
	// Deadline is when the coordinator may abort the transaction by itself
	// (transaction.timeout.ms), by its own clock; it looks every ten seconds
	// (transaction.abort.timed.out.transaction.cleanup.interval.ms). Afterwards the
	// token is good for finding out that it did. Zero means never: the transaction
	// is one of two-phase commit (KIP-939).
	Deadline time.Time
}

// tokenVersion is that of both forms.
const tokenVersion = 1

// tokenPrefix begins the short form and says its version.
const tokenPrefix = "ktx1."

// tokenJSON is the JSON form of a token.
type tokenJSON struct {
	Version         int        `json:"version"`
	TransactionalID string     `json:"transactional_id"`
	ProducerID      int64      `json:"producer_id"`
	ProducerEpoch   int16      `json:"producer_epoch"`
	ClusterID       string     `json:"cluster_id,omitempty"`
	Dialect         string     `json:"dialect,omitempty"`
	GroupIDs        []string   `json:"group_ids"`
	Created         time.Time  `json:"created"`
	Deadline        *time.Time `json:"deadline"` // null: never
}

// TokenError says that something is no token, or not one for this cluster.
type TokenError struct {
	Reason string // continues "transaction token: "
	Advice string // what to do about it; "" when there is nothing to say
	Err    error  // nil when there is no cause
}

// Error names the reason.
func (e *TokenError) Error() string { return "transaction token: " + e.Reason }

// Unwrap returns the cause.
func (e *TokenError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *TokenError) Hint() string { return e.Advice }

// maxTokenString bounds each text in a token; Kafka's own limit is about that.
const maxTokenString = 1 << 15

// validate returns a *TokenError for what cannot name a transaction.
func (t Token) validate() error {
	switch {
	case t.TransactionalID == "":
		return &TokenError{Reason: "it has no transactional ID"}
	case t.ProducerID < 0 || t.ProducerEpoch < 0:
		return &TokenError{Reason: fmt.Sprintf("producer ID %d with epoch %d is none of a transaction", t.ProducerID, t.ProducerEpoch)}
	case t.Created.IsZero():
		return &TokenError{Reason: "it does not say when it was made"}
	case !inCalendar(t.Created), !inCalendar(t.Deadline):
		return &TokenError{Reason: "its times are not of this era"}
	}
	for _, s := range append([]string{t.TransactionalID, t.ClusterID, t.Dialect}, t.GroupIDs...) {
		if !utf8.ValidString(s) || len(s) > maxTokenString {
			return &TokenError{Reason: fmt.Sprintf("%.40q is no name that Kafka knows", s)}
		}
	}
	return nil
}

// inCalendar reports whether JSON has a form for a time.
func inCalendar(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 0 && y <= 9999
}

// normal returns the token with what both forms keep of it: times in UTC, to the
// millisecond.
func (t Token) normal() Token {
	if len(t.GroupIDs) == 0 {
		t.GroupIDs = nil
	}
	t.Created = t.Created.UTC().Truncate(time.Millisecond)
	if !t.Deadline.IsZero() {
		t.Deadline = t.Deadline.UTC().Truncate(time.Millisecond)
	}
	return t
}

// MarshalJSON returns the JSON form. It may return *TokenError.
func (t Token) MarshalJSON() ([]byte, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	t = t.normal()
	j := tokenJSON{
		Version: tokenVersion, TransactionalID: t.TransactionalID, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch,
		ClusterID: t.ClusterID, Dialect: t.Dialect, GroupIDs: append([]string{}, t.GroupIDs...), Created: t.Created,
	}
	if !t.Deadline.IsZero() {
		j.Deadline = &t.Deadline
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the JSON form and checks it. It may return *TokenError.
func (t *Token) UnmarshalJSON(b []byte) error {
	var j tokenJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return &TokenError{Reason: err.Error(), Err: err}
	}
	if j.Version != tokenVersion {
		return &TokenError{Reason: fmt.Sprintf("version %d, this software knows version %d", j.Version, tokenVersion)}
	}
	out := Token{
		TransactionalID: j.TransactionalID, ProducerID: j.ProducerID, ProducerEpoch: j.ProducerEpoch,
		ClusterID: j.ClusterID, Dialect: j.Dialect, GroupIDs: j.GroupIDs, Created: j.Created,
	}
	if j.Deadline != nil {
		out.Deadline = *j.Deadline
	}
	if err := out.validate(); err != nil {
		return err
	}
	*t = out.normal()
	return nil
}

// String returns the short form: letters, digits, ".", "-" and "_". It is "" for
// a token that names no transaction.
func (t Token) String() string {
	if t.validate() != nil {
		return ""
	}
	t = t.normal()
	b := appendText(nil, t.TransactionalID)
	b = binary.AppendUvarint(b, uint64(t.ProducerID))
	b = binary.AppendUvarint(b, uint64(t.ProducerEpoch))
	b = appendText(b, t.ClusterID)
	b = appendText(b, t.Dialect)
	b = binary.AppendUvarint(b, uint64(len(t.GroupIDs)))
	for _, g := range t.GroupIDs {
		b = appendText(b, g)
	}
	b = binary.AppendVarint(b, t.Created.UnixMilli())
	never := byte(1)
	if !t.Deadline.IsZero() {
		never = 0
	}
	if b = append(b, never); never == 0 {
		b = binary.AppendVarint(b, t.Deadline.UnixMilli())
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// ParseToken reads either form of a token; blanks around it do not matter. It
// may return *TokenError.
func ParseToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return Token{}, &TokenError{
			Reason: "it is empty",
			Advice: "who was to write it may have died before that; 'kshare inspect pending' shows records that it left staged, and 'kshare txn fence' frees them",
		}
	}
	if strings.HasPrefix(s, "{") {
		var t Token
		err := json.Unmarshal([]byte(s), &t)
		if err != nil && !isA[*TokenError](err) {
			err = &TokenError{Reason: err.Error(), Err: err}
		}
		return t, err
	}
	text, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok {
		return Token{}, &TokenError{Reason: fmt.Sprintf("%.40q does not begin with %q or %q", s, tokenPrefix, "{")}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return Token{}, &TokenError{Reason: "it is damaged: " + err.Error(), Advice: takeWhole, Err: err}
	}
	if n := len(b) - 4; n < 0 || crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(b[n:]) {
		return Token{}, &TokenError{Reason: "it is damaged: the checksum is wrong, a part may be missing", Advice: takeWhole}
	}
	d := tokenDecoder{b: b[:len(b)-4]}
	t := d.token()
	if d.failed || len(d.b) > 0 {
		return Token{}, &TokenError{Reason: "it is damaged", Advice: takeWhole, Err: errDamaged}
	}
	if err := t.validate(); err != nil {
		return Token{}, err
	}
	return t.normal(), nil
}

// takeWhole is what to do about a token that is damaged.
const takeWhole = "take it whole, from the file or the document that it was written to; 'kshare txn describe TRANSACTIONAL-ID' tells without one how that ID stands"

var errDamaged = errors.New("fields and length do not agree")

// tokenDecoder reads the fields of the short form. After a failure it reads
// zeroes.
type tokenDecoder struct {
	b      []byte
	failed bool
}

func (d *tokenDecoder) token() Token {
	var t Token
	t.TransactionalID = d.text()
	t.ProducerID = d.int(1<<63 - 1)
	t.ProducerEpoch = int16(d.int(1<<15 - 1))
	t.ClusterID = d.text()
	t.Dialect = d.text()
	for range d.int(int64(len(d.b))) {
		t.GroupIDs = append(t.GroupIDs, d.text())
	}
	t.Created = d.time()
	switch d.byte() {
	case 0:
		t.Deadline = d.time()
	case 1:
	default:
		d.failed = true
	}
	return t
}

func (d *tokenDecoder) take(n int) []byte {
	if d.failed || n < 0 || n > len(d.b) {
		d.failed = true
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *tokenDecoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// int reads a number from 0 to most.
func (d *tokenDecoder) int(most int64) int64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || most < 0 || v > uint64(most) {
		d.failed = true
		return 0
	}
	d.take(n)
	return int64(v)
}

func (d *tokenDecoder) text() string { return string(d.take(int(d.int(maxTokenString)))) }

func (d *tokenDecoder) time() time.Time {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.failed = true
		return time.Time{}
	}
	d.take(n)
	return time.UnixMilli(v).UTC()
}
