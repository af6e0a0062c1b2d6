// Package output turns results into bytes: tables for people; JSON, YAML and
// CSV for programs. It knows nothing of Kafka and imports nothing of kshare's,
// so a command describes its result once, as a [View], and every format follows
// from that.
//
//	t := output.NewTable("GROUP", "COUNT", "VERDICT")
//	t.Row("billing", 12, output.Bad("orphan"))
//	v := output.View{Kind: "inspect.pending", Version: 1, Items: rows, Table: t}
//	err := output.Write(os.Stdout, v, output.Options{Format: output.JSON})
//
// # Envelope
//
// A JSON or YAML document is one object with these keys, in this order:
//
//	kind        what the document holds, such as "inspect.pending"
//	version     version of the schema of that kind, from 1; adding a key keeps
//	            it, renaming, removing or retyping one raises it
//	cluster_id  the cluster the result came from, null if none was asked
//	time        when the result was made, RFC 3339 in UTC
//	incomplete  true if something could not be read; the exit code is then 3
//	warnings    sentences, [] if there are none
//	items       the list that the command was asked for; never null
//	data        what else there is to say, an object
//
// A kind has items, or data, or both, always the same ones.
//
// # Values
//
// Names come from the json tag of a field, the order from the order of fields;
// a map is sorted by key. int64 is a number. A nil pointer is null, which means
// unknown; what does not apply is left out (omitempty, omitzero). A nil slice
// is [] and a nil map is {}, but nil bytes are null. A time is RFC 3339 in UTC, a zero time null. A
// duration is a whole number of milliseconds where its name ends in _ms, and
// text such as "1m30s" elsewhere. A type with a MarshalText or, failing that, a
// String method is a string. Bytes, and strings, are strings where they are
// valid UTF-8 and {"encoding":"base64","value":"..."} where they are not.
//
// # Tables
//
// Tables are for people and may change at any time. A cell that does not apply
// shows "-", one that could not be read "?". Control characters are escaped, so
// that nothing read from a cluster can drive the terminal. A row is one line.
package output
