package auth

import (
	"fmt"
	"log/slog"
	"net/url"
	"strings"
)

// Secret is a password, a key or a token. It prints as *** whatever the verb, in
// JSON, YAML and logs too; string(s) is its value.
type Secret string

// redacted stands for every secret, also for an empty one: whether there is one
// is nobody's business.
const redacted = "***"

// String returns ***.
func (Secret) String() string { return redacted }

// GoString returns ***.
func (Secret) GoString() string { return redacted }

// Format writes *** for every verb: fmt would print a string's bytes by %x.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText returns ***, for JSON and YAML.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns ***.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// RedactURL is a URL without the password that may be in it, and *** for what is
// no URL.
func RedactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return redacted
	}
	return strings.Replace(u.Redacted(), ":xxxxx@", ":"+redacted+"@", 1)
}
