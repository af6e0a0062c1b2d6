package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Error is a failed operation with what an operator needs to act on it: the
// broker that answered, the topic partition it was about, and what to do next.
type Error struct {
	Op        string // what was being done, such as `stage acknowledgements of share group "g"`
	Broker    int32  // node ID of the broker that answered; -1 when none did
	Topic     string // "" when the failure is not about one partition
	Partition int32  // meaningful with Topic only
	Err       error  // the cause; a *kerr.Error when a broker named it
	Detail    string // the broker's own text, "" when it gave none
	Advice    string // what to do next, "" when there is nothing to say
}

// Error reads "op: broker 2: topic-3: GROUP_ID_NOT_FOUND (detail)".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Broker >= 0 {
		fmt.Fprintf(&b, ": broker %d", e.Broker)
	}
	if e.Topic != "" {
		fmt.Fprintf(&b, ": %s-%d", e.Topic, e.Partition)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(Name(e.Err))
	if e.Detail != "" {
		fmt.Fprintf(&b, " (%s)", e.Detail)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Hint returns what to do next, "" when there is nothing to say.
func (e *Error) Hint() string { return e.Advice }

// BrokerID returns the node ID of the broker that answered; -1 when none did.
func (e *Error) BrokerID() int32 { return e.Broker }

// Join is [errors.Join] with a text of one line.
func Join(errs ...error) error {
	var all joinedError
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type joinedError []error

func (e joinedError) Error() string {
	parts := make([]string, 0, len(e))
	for _, err := range e {
		if s := err.Error(); !slices.Contains(parts, s) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

func (e joinedError) Unwrap() []error { return e }

// Name returns the Kafka error name of err, such as "PRODUCER_FENCED", and the
// error's own text when no broker named it.
func Name(err error) string {
	if err == nil {
		return "NONE"
	}
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return ke.Message
	}
	return err.Error()
}

// AuthError says that the principal was not authenticated or is not authorised
// for something. It wraps the broker's error.
type AuthError struct {
	Err    error
	Advice string
}

// Error returns the text of the wrapped error.
func (e *AuthError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *AuthError) Unwrap() error { return e.Err }

// Hint returns what to grant or to check.
func (e *AuthError) Hint() string { return e.Advice }

// authAdvice returns what to do about an error by which a broker says that a
// principal may not; false for other errors.
func authAdvice(code int16) (string, bool) {
	switch code {
	case kerr.TopicAuthorizationFailed.Code:
		return "grant READ on the source topic and WRITE on the destination topic to this principal", true
	case kerr.GroupAuthorizationFailed.Code:
		return "grant READ on the share group to this principal", true
	case kerr.ClusterAuthorizationFailed.Code:
		return "grant the cluster operation that the command needs to this principal", true
	case kerr.TransactionalIDAuthorizationFailed.Code:
		return "grant WRITE and DESCRIBE on the transactional ID to this principal", true
	case kerr.SaslAuthenticationFailed.Code:
		return "check user name, password and sasl.mechanism", true
	case kerr.UnsupportedSaslMechanism.Code:
		return "set sasl.mechanism to one that the brokers offer", true
	case kerr.IllegalSaslState.Code:
		return "check security.protocol: the listener may not use SASL", true
	default:
		return "", false
	}
}

// classify wraps err in an *AuthError or a *DialError where it is one, so that
// callers and exit codes can tell.
func classify(err error, addrs []string) error {
	if err == nil {
		return nil
	}
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		if hint, ok := authAdvice(ke.Code); ok {
			return &AuthError{Err: err, Advice: hint}
		}
		return err
	}
	if _, ok := errors.AsType[*AuthError](err); ok {
		return err
	}
	if e, ok := errors.AsType[notAuthenticated](err); ok {
		return &AuthError{Err: err, Advice: e.Hint()}
	}
	if advice := tlsAdvice(err); advice != "" {
		return &AuthError{Err: err, Advice: advice}
	}
	if wrongProtocol(err) {
		return &AuthError{Err: err, Advice: "check security.protocol: client and listener have to agree on TLS and on SASL"}
	}
	if _, ok := errors.AsType[*net.OpError](err); ok || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ECONNREFUSED) {
		return &DialError{Addrs: addrs, Err: err}
	}
	return err
}

// classifyOld returns *UnsupportedError for a request that was not sent since the
// broker knows no version of it. kgo tells that in words alone.
func classifyOld(req kmsg.Request, err error) error {
	if err == nil || !strings.Contains(err.Error(), "broker is too old") {
		return err
	}
	return &UnsupportedError{
		What: kmsg.NameForKey(req.Key()), Reason: "the software of the broker is too old to know this request",
		Advice: "upgrade the brokers; 'kshare doctor' shows what each of them serves",
	}
}

// notAuthenticated is an error of a mechanism, such as that of package auth: what
// proves who the client is could not be had, or the broker proves nothing.
type notAuthenticated interface {
	error
	NotAuthenticated()
	Hint() string
}

// tlsAdvice says what to do when TLS is spoken by both sides and one does not
// accept the other; "" for other errors.
func tlsAdvice(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "trust the CA that signed the broker's certificate: ssl.truststore.location, or --tls-ca"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "use a name that is in the broker's certificate, or say which one to expect by --tls-server-name"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the broker's certificate has to be renewed; or this machine's clock is wrong"
	}
	// The other side's alert; crypto/tls has no type for it.
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || op.Op != "remote error":
		return ""
	case strings.Contains(op.Err.Error(), "certificate"):
		return "the listener wants a certificate of the client, by a CA that it trusts: ssl.keystore.location, or --tls-cert and --tls-key"
	default:
		return "client and listener do not agree on a version or a cipher suite of TLS: see ssl.enabled.protocols and ssl.cipher.suites"
	}
}

// wrongProtocol reports whether err is what happens when client and listener do
// not agree on security.protocol. The last case kgo tells in words alone.
func wrongProtocol(err error) bool {
	if _, ok := errors.AsType[*kgo.ErrFirstReadEOF](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	return isTLSAlert(err)
}

func isTLSAlert(err error) bool {
	return strings.Contains(err.Error(), "appear to be a tls alert record")
}

// mismatch says in which way client and listener do not agree on
// security.protocol, which the first request to a server shows; it returns other
// errors as they are.
func (c *Client) mismatch(err error) error {
	_, notTLS := errors.AsType[tls.RecordHeaderError](err)
	_, eof := errors.AsType[*kgo.ErrFirstReadEOF](err)
	op, isOp := errors.AsType[*net.OpError](err)
	// A broker without TLS takes the first bytes of TLS for the size of a request,
	// which is too large, and hangs up before it has read the rest. So does a
	// listener with TLS that meets none: its alert may get lost on the way.
	reset := isOp && op.Op != "dial" && errors.Is(err, syscall.ECONNRESET)
	wantsSASL := eof && strings.Contains(err.Error(), "is SASL missing") // kgo tells it in words alone
	switch {
	case wantsSASL && c.cfg.TLS != nil:
		return &AuthError{Err: err, Advice: "the listener seems to want SASL, which the client does not speak: set security.protocol to SASL_SSL (--sasl-mechanism), or check the port"}
	case c.cfg.TLS != nil && (notTLS || eof || reset || errors.Is(err, errHandshakeTimeout)):
		return &AuthError{Err: err, Advice: "the listener seems to be without TLS, which the client speaks: check the port, or set security.protocol to PLAINTEXT or SASL_PLAINTEXT (--tls=false)"}
	case c.cfg.TLS == nil && (isTLSAlert(err) || eof && strings.Contains(err.Error(), "is TLS missing")):
		return &AuthError{Err: err, Advice: "the listener seems to want TLS, and the client does not speak it: set security.protocol to SSL or SASL_SSL (--tls), or check the port"}
	case len(c.cfg.SASL) > 0 && errors.Is(err, io.EOF):
		return &AuthError{Err: err, Advice: "the broker has hung up while the client authenticated: check user, password, sasl.mechanism and security.protocol"}
	case reset && c.cfg.TLS == nil && len(c.cfg.SASL) > 0:
		return &AuthError{Err: err, Advice: "the listener seems to want TLS, or no SASL: check security.protocol (--tls, --sasl-mechanism), or the port"}
	case (eof || reset) && len(c.cfg.SASL) == 0:
		return &AuthError{Err: err, Advice: "the listener seems to want TLS or SASL, and the client speaks neither: set security.protocol (--tls, --sasl-mechanism), or check the port"}
	}
	return err
}

// Classify returns err as an *AuthError when a broker refused the principal,
// and unchanged otherwise.
func Classify(err error) error { return classifyAuth(err) }

func classifyAuth(err error) error {
	if e, ok := errors.AsType[notAuthenticated](err); ok {
		return &AuthError{Err: err, Advice: e.Hint()}
	}
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		if hint, ok := authAdvice(ke.Code); ok {
			return &AuthError{Err: err, Advice: hint}
		}
	}
	return err
}

// DialError says that none of the bootstrap servers answered.
type DialError struct {
	Addrs []string
	Err   error
}

// Error names the addresses that were tried and the last failure.
func (e *DialError) Error() string {
	return fmt.Sprintf("no bootstrap server answered (tried %s): %v", strings.Join(e.Addrs, ", "), e.Err)
}

// Unwrap returns the last failure.
func (e *DialError) Unwrap() error { return e.Err }

// Hint returns what to check.
func (e *DialError) Hint() string {
	return "check the address and that the broker runs; if it listens with TLS or SASL, so must the client"
}

// NoBrokersError says that a broker answers and names none that is alive, not even
// itself: so does one that its controller has fenced. It says nothing of what the
// cluster holds.
type NoBrokersError struct{}

// Error says so.
func (*NoBrokersError) Error() string {
	return "a broker answers, and names no broker that is alive: all of them are fenced"
}

// Hint returns what to look at.
func (*NoBrokersError) Hint() string {
	return "a broker is fenced until its controller hears from it: try again, and look at the logs of the controllers if it stays so"
}

// ListenerError says that an address belongs to something that is no broker's
// listener for clients.
type ListenerError struct {
	Addr   string
	Reason string // continues the address, such as "is the listener of a KRaft controller"
	Advice string
}

// Error reads "address reason".
func (e *ListenerError) Error() string { return e.Addr + " " + e.Reason }

// Hint returns what to do instead.
func (e *ListenerError) Hint() string { return e.Advice }

// ConfigError says that no client can be made of a configuration.
type ConfigError struct{ Err error }

// Error names what is wrong.
func (e *ConfigError) Error() string { return fmt.Sprintf("configure Kafka client: %v", e.Err) }

// Unwrap returns the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// IsUnanswered reports whether err came of a request that no broker answered,
// because it could not be reached or the connection broke. Whether the broker
// has acted on the request is not known.
func IsUnanswered(err error) bool {
	if connectionFailed(err) {
		return true
	}
	// Of the requests on a connection that breaks, kgo gives the first this error,
	// and the others one that has no name. What a broker said, and a deadline, are
	// retryable to kgo too.
	_, said := errors.AsType[*kerr.Error](err)
	ne, ok := errors.AsType[net.Error](err)
	return !said && !(ok && ne.Timeout()) && kgo.IsRetryableBrokerErr(err)
}

// connectionFailed reports whether err is that of a connection.
func connectionFailed(err error) bool {
	_, op := errors.AsType[*net.OpError](err)
	return op || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// UnsupportedError says that this cluster cannot do what was asked, and which
// part is missing.
type UnsupportedError struct {
	What   string // what was asked for, such as "transactional acknowledgements (KIP-1289)"
	Reason string // one sentence
	Advice string // what to do next, "" when there is nothing to say
}

// Error reads "what is not usable on this cluster: reason".
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s cannot be used on this cluster: %s", e.What, e.Reason)
}

// Hint returns what to do next, "" when there is nothing to say.
func (e *UnsupportedError) Hint() string { return e.Advice }
