package config

import "fmt"

// Error is a mistake in the configuration. It never has a value in it.
type Error struct {
	Where  string // such as "--tls-ca", "$KSHARE_TLS" or "/home/a/config.yaml: context \"prod\": tls"
	Reason string
	Advice string // what to do, "" when the reason says it
}

// Error reads "where: reason".
func (e *Error) Error() string {
	if e.Where == "" {
		return e.Reason
	}
	return e.Where + ": " + e.Reason
}

// Hint returns what to do.
func (e *Error) Hint() string { return e.Advice }

func errorf(where, format string, args ...any) *Error {
	return &Error{Where: where, Reason: fmt.Sprintf(format, args...)}
}

func (e *Error) advise(format string, args ...any) *Error {
	e.Advice = fmt.Sprintf(format, args...)
	return e
}
