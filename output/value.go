package output

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A value becomes a tree of nodes first, and the tree becomes JSON or YAML, so
// that both hold the same document with its keys in the same order.
type (
	node    interface{ isNode() }
	null    struct{}
	boolean bool
	number  string // a JSON number, digits kept as they are
	text    string // any bytes; see encodeText
	list    []node
	object  []member
	member  struct {
		key string
		val node
	}
)

func (null) isNode()    {}
func (boolean) isNode() {}
func (number) isNode()  {}
func (text) isNode()    {}
func (list) isNode()    {}
func (object) isNode()  {}

// binary is the form of bytes that are not UTF-8.
func binary(b []byte) node {
	return object{
		{"encoding", text("base64")},
		{"value", text(base64.StdEncoding.EncodeToString(b))},
	}
}

func bytesNode(b []byte) node {
	if utf8.Valid(b) {
		return text(b)
	}
	return binary(b)
}

func timeNode(t time.Time) node {
	if t.IsZero() {
		return null{}
	}
	return text(t.UTC().Format(time.RFC3339Nano))
}

// encode returns the tree of any value, by the rules in the package comment. It
// fails for values that JSON cannot hold: functions, channels, complex numbers,
// NaN and infinities.
func encode(x any) (node, error) { return encodeValue(reflect.ValueOf(x), "") }

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	numberType   = reflect.TypeFor[json.Number]()
)

// encodeValue encodes v, which is held by a key of that name ("" for none).
func encodeValue(v reflect.Value, name string) (node, error) {
	if !v.IsValid() {
		return null{}, nil
	}
	if k := v.Kind(); (k == reflect.Pointer || k == reflect.Interface) && v.IsNil() {
		return null{}, nil
	}
	switch v.Type() {
	case timeType:
		return timeNode(v.Interface().(time.Time)), nil
	case durationType:
		return durationNode(time.Duration(v.Int()), name), nil
	case numberType:
		return number(v.String()), nil
	}
	if n, ok, err := encodeMethod(v); ok || err != nil {
		return n, err
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return encodeValue(v.Elem(), name)
	case reflect.Bool:
		return boolean(v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return number(strconv.FormatInt(v.Int(), 10)), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return number(strconv.FormatUint(v.Uint(), 10)), nil
	case reflect.Float32, reflect.Float64:
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("number %v has no JSON form", f)
		}
		return number(formatFloat(f, v.Type().Bits())), nil
	case reflect.String:
		return bytesNode([]byte(v.String())), nil
	case reflect.Slice, reflect.Array:
		return encodeList(v)
	case reflect.Map:
		return encodeMap(v)
	case reflect.Struct:
		return encodeStruct(v)
	default:
		return nil, fmt.Errorf("type %s has no JSON form", v.Type())
	}
}

// formatFloat writes an exponent for very large and very small numbers only, as
// encoding/json does: a million is 1000000.
func formatFloat(f float64, bits int) string {
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.FormatFloat(f, format, -1, bits)
}

func durationNode(d time.Duration, name string) node {
	if strings.HasSuffix(name, "_ms") {
		return number(strconv.FormatInt(d.Milliseconds(), 10))
	}
	return text(d.String())
}

// encodeMethod lets a type speak for itself: MarshalJSON, MarshalText, or, for
// what is not a struct, String. Types of numbers with a String method are
// enumerations, and Kafka's word for a state says more than its number.
func encodeMethod(v reflect.Value) (node, bool, error) {
	if !v.CanInterface() {
		return nil, false, nil
	}
	switch m := v.Interface().(type) {
	case json.Marshaler:
		raw, err := m.MarshalJSON()
		if err != nil {
			return nil, true, err
		}
		n, err := decode(raw)
		return n, true, err
	case encoding.TextMarshaler:
		b, err := m.MarshalText()
		return bytesNode(b), true, err
	case fmt.Stringer:
		if k := v.Kind(); k != reflect.Struct && k != reflect.Pointer && k != reflect.Interface {
			return bytesNode([]byte(m.String())), true, nil
		}
	}
	return nil, false, nil
}

func encodeList(v reflect.Value) (node, error) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		if v.Kind() == reflect.Slice {
			if v.IsNil() { // a record without key or value, which is not an empty one
				return null{}, nil
			}
			return bytesNode(v.Bytes()), nil
		}
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return bytesNode(b), nil
	}
	l := make(list, 0, v.Len())
	for i := range v.Len() {
		n, err := encodeValue(v.Index(i), "")
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		l = append(l, n)
	}
	return l, nil
}

func encodeMap(v reflect.Value) (node, error) {
	o := make(object, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		key, err := mapKey(it.Key())
		if err != nil {
			return nil, err
		}
		n, err := encodeValue(it.Value(), key)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		o = append(o, member{key, n})
	}
	slices.SortFunc(o, func(a, b member) int { return strings.Compare(a.key, b.key) })
	return o, nil
}

func mapKey(v reflect.Value) (string, error) {
	n, err := encodeValue(v, "")
	if err != nil {
		return "", err
	}
	switch n := n.(type) {
	case text:
		return string(n), nil
	case number:
		return string(n), nil
	case object: // bytes that are not UTF-8: keys are text, so show them escaped
		return Escape(v.String()), nil
	default:
		return "", fmt.Errorf("type %s cannot be a key", v.Type())
	}
}

func encodeStruct(v reflect.Value) (node, error) {
	o := make(object, 0, v.NumField())
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, omit, skip := fieldName(f)
		if skip || omit != nil && omit(v.Field(i)) {
			continue
		}
		n, err := encodeValue(v.Field(i), name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if name == "" { // embedded: its keys are ours
			if embedded, ok := n.(object); ok {
				o = append(o, embedded...)
			}
			continue
		}
		o = append(o, member{name, n})
	}
	return o, nil
}

// fieldName reads a json tag: the key, when to leave it out (nil is never), and
// whether to skip the field altogether. The key of an embedded struct is "".
func fieldName(f reflect.StructField) (name string, omit func(reflect.Value) bool, skip bool) {
	tag := f.Tag.Get("json")
	if tag == "-" || !f.IsExported() && !f.Anonymous {
		return "", nil, true
	}
	name, opts, _ := strings.Cut(tag, ",")
	for opt := range strings.SplitSeq(opts, ",") {
		switch opt {
		case "omitempty":
			omit = isEmpty
		case "omitzero":
			omit = reflect.Value.IsZero
		}
	}
	if name == "" && !isEmbeddedStruct(f) {
		name = f.Name
	}
	return name, omit, false
}

func isEmbeddedStruct(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return f.Anonymous && t.Kind() == reflect.Struct
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}

// decode turns JSON into nodes and keeps the order of keys and every digit.
func decode(raw []byte) (node, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	n, err := decodeNext(dec)
	if err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("more than one JSON value")
	}
	return n, nil
}

func decodeNext(dec *json.Decoder) (node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case bool:
		return boolean(tok), nil
	case json.Number:
		return number(tok), nil
	case string:
		return text(tok), nil
	case json.Delim:
		if tok == '[' {
			return decodeList(dec)
		}
		return decodeObject(dec)
	default:
		return null{}, nil
	}
}

func decodeList(dec *json.Decoder) (node, error) {
	l := list{}
	for dec.More() {
		n, err := decodeNext(dec)
		if err != nil {
			return nil, err
		}
		l = append(l, n)
	}
	_, err := dec.Token()
	return l, err
}

func decodeObject(dec *json.Decoder) (node, error) {
	o := object{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		n, err := decodeNext(dec)
		if err != nil {
			return nil, err
		}
		o = append(o, member{key.(string), n})
	}
	_, err := dec.Token()
	return o, err
}
