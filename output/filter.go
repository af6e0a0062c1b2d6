package output

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/itchyny/gojq"
)

// Filter is a jq expression that documents are put through. It can be used by
// several goroutines.
type Filter struct {
	expression string
	code       *gojq.Code
	raw        bool
}

// NewFilter compiles a jq expression. Results are JSON; with raw, those that are
// strings are written as they are. The expression sees its document and nothing
// else: no environment, no files, no further input. It may return *[FilterError].
func NewFilter(expression string, raw bool) (*Filter, error) {
	query, err := gojq.Parse(expression)
	if err != nil {
		return nil, &FilterError{expression, err}
	}
	// Without an environment loader, env and $ENV are empty: secrets are set by
	// environment variables, and what is filtered ends in logs.
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, &FilterError{expression, err}
	}
	return &Filter{expression, code, raw}, nil
}

// FilterError says that an expression is wrong, or does not fit a document.
type FilterError struct {
	Expression string
	Err        error
}

// maxFilterError bounds a message of jq, which may quote a whole document.
const maxFilterError = 500

// Error names the expression.
func (e *FilterError) Error() string {
	msg := e.Err.Error()
	if len(msg) > maxFilterError {
		msg = strings.ToValidUTF8(msg[:maxFilterError], "") + "..."
	}
	return fmt.Sprintf("jq expression %q: %s", e.Expression, msg)
}

// Unwrap returns the error of jq.
func (e *FilterError) Unwrap() error { return e.Err }

// writeFiltered writes each result of the filter on a line of its own, as soon as
// there are a few: an expression may have more of them than fit into memory.
func writeFiltered(w io.Writer, doc node, o Options) error {
	ctx := o.Context
	// A command that was told to stop still shows what it has.
	if ctx == nil || ctx.Err() != nil {
		ctx = context.Background()
	}
	out := bufio.NewWriterSize(w, 1<<16)
	f := o.Filter
	for iter := f.code.RunWithContext(ctx, f.input(doc)); ; {
		x, ok := iter.Next()
		if !ok {
			return out.Flush()
		}
		if err, ok := x.(error); ok {
			ferr := out.Flush()
			if halt, ok := errors.AsType[*gojq.HaltError](err); ok && halt.Value() == nil {
				return ferr
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return errors.Join(&FilterError{f.expression, err}, ferr)
		}
		line, err := f.line(x, o.Terminal)
		if err != nil {
			return &FilterError{f.expression, err}
		}
		if _, err := out.WriteString(line + "\n"); err != nil {
			return err
		}
	}
}

// line is a result as it is written.
func (f *Filter) line(x any, terminal bool) (string, error) {
	if s, ok := x.(string); ok && f.raw {
		if terminal {
			s = escapeLines(s)
		}
		return s, nil
	}
	raw, err := gojq.Marshal(x)
	if err != nil {
		return "", err
	}
	n, err := decode(raw)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	appendJSON(&b, n, "", "")
	return b.String(), nil
}

// input is a tree of nodes as jq takes it. A number keeps all its digits as long
// as nothing calculates with it.
func (f *Filter) input(n node) any {
	switch n := n.(type) {
	case boolean:
		return bool(n)
	case number:
		return json.Number(n)
	case text:
		return string(n)
	case list:
		l := make([]any, len(n))
		for i, e := range n {
			l[i] = f.input(e)
		}
		return l
	case object:
		m := make(map[string]any, len(n))
		for _, e := range n {
			m[e.key] = f.input(e.val)
		}
		return m
	default:
		return nil
	}
}
