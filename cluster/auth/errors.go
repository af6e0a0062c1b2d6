package auth

import (
	"errors"
	"fmt"
	"strings"
)

// ConfigError says what is wrong with a file or a setting. It never has a value
// in it, which may be a secret.
type ConfigError struct {
	File   string // "" when it is not about a file
	Line   int    // of File, from 1; 0 when it is not about a line
	Key    string // "" when it is not about a key
	Reason string
	Err    error  // the cause, where it says more than Reason and has no secret in it
	Advice string // what to do, "" when the reason says it
}

// Error reads "file:line: key: reason".
func (e *ConfigError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	for _, part := range []string{e.Key, e.Reason} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// Hint returns what to do.
func (e *ConfigError) Hint() string { return e.Advice }

// keyError is a ConfigError about a key.
func keyError(key, format string, args ...any) *ConfigError {
	return &ConfigError{Key: key, Reason: fmt.Sprintf(format, args...)}
}

// advise adds what to do to a ConfigError.
func (e *ConfigError) advise(format string, args ...any) *ConfigError {
	e.Advice = fmt.Sprintf(format, args...)
	return e
}

// inFile says which file a ConfigError is about, where it does not say so yet.
func inFile(err error, file string) error {
	if e, ok := errors.AsType[*ConfigError](err); ok && e.File == "" {
		e.File = file
	}
	return err
}

// CredentialError says that credentials could not be had: a token endpoint
// refused, a command failed, a file is gone. It never has a secret in it.
type CredentialError struct {
	What   string // what was wanted, such as "token of https://idp/token"
	Err    error
	Advice string
}

// Error reads "what: cause".
func (e *CredentialError) Error() string { return fmt.Sprintf("%s: %v", e.What, e.Err) }

// Unwrap returns the cause.
func (e *CredentialError) Unwrap() error { return e.Err }

// Hint returns what to do.
func (e *CredentialError) Hint() string { return e.Advice }

// NotAuthenticated marks the error as one of authentication, for packages that
// do not import this one.
func (*CredentialError) NotAuthenticated() {}
