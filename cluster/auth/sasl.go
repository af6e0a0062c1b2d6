package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// The SASL mechanisms, by their names in Kafka.
const (
	MechanismPlain       = "PLAIN"
	MechanismScramSHA256 = "SCRAM-SHA-256"
	MechanismScramSHA512 = "SCRAM-SHA-512"
	MechanismOAuthBearer = "OAUTHBEARER"
	MechanismAWSMSKIAM   = "AWS_MSK_IAM"
	MechanismGSSAPI      = "GSSAPI"
)

// Mechanisms returns the names of all mechanisms. The slice is the caller's.
func Mechanisms() []string {
	return []string{
		MechanismPlain, MechanismScramSHA256, MechanismScramSHA512,
		MechanismOAuthBearer, MechanismAWSMSKIAM, MechanismGSSAPI,
	}
}

// SASL is a login by SASL.
type SASL struct {
	// Name is one of [Mechanisms].
	Name string
	// User and Password are for PLAIN and SCRAM; User is the principal of
	// GSSAPI too, such as alice@EXAMPLE.COM.
	User     string
	Password Secret
	// DelegationToken says that User and Password are the ID and the HMAC of a
	// delegation token (KIP-48). SCRAM only.
	DelegationToken bool

	OAuth    OAuth    // for OAUTHBEARER
	AWS      AWS      // for AWS_MSK_IAM
	Kerberos Kerberos // for GSSAPI

	// Now is the clock that tokens expire by; nil is time.Now.
	Now func() time.Time
}

// Mechanism returns the mechanism, after it has looked whether all is there that
// it needs. It may return *ConfigError.
func (s *SASL) Mechanism() (sasl.Mechanism, error) {
	m, err := s.mechanism()
	if err != nil {
		return nil, err
	}
	return named{m}, nil
}

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	now := s.Now
	if now == nil {
		now = time.Now
	}
	switch s.Name {
	case MechanismPlain:
		if err := s.needPassword(); err != nil {
			return nil, err
		}
		return plain.Auth{User: s.User, Pass: string(s.Password)}.AsMechanism(), nil
	case MechanismScramSHA256, MechanismScramSHA512:
		if err := s.needPassword(); err != nil {
			return nil, err
		}
		a := scram.Auth{User: s.User, Pass: string(s.Password), IsToken: s.DelegationToken}
		if s.Name == MechanismScramSHA256 {
			return a.AsSha256Mechanism(), nil
		}
		return a.AsSha512Mechanism(), nil
	case MechanismOAuthBearer:
		return s.OAuth.mechanism(now)
	case MechanismAWSMSKIAM:
		return s.AWS.mechanism(now), nil
	case MechanismGSSAPI:
		return s.Kerberos.mechanism(s.User, s.Password)
	}
	return nil, CheckMechanism(s.Name)
}

// named is a mechanism whose errors say that it was authentication that failed.
type named struct{ sasl.Mechanism }

// Authenticate may return *CredentialError, as the session's Challenge may.
func (n named) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	s, first, err := n.Mechanism.Authenticate(ctx, host)
	if err != nil {
		return nil, nil, n.failed(err)
	}
	return namedSession{s, n}, first, nil
}

func (n named) failed(err error) error {
	if e, ok := errors.AsType[*CredentialError](err); ok {
		return e
	}
	return &CredentialError{What: "SASL " + n.Name(), Err: err, Advice: "check the credentials, and sasl.mechanism"}
}

type namedSession struct {
	sasl.Session
	of named
}

func (s namedSession) Challenge(b []byte) (bool, []byte, error) {
	done, out, err := s.Session.Challenge(b)
	if err != nil {
		err = s.of.failed(err)
	}
	return done, out, err
}

func (s *SASL) needPassword() error {
	switch {
	case s.User == "":
		return (&ConfigError{Reason: fmt.Sprintf("SASL %s needs a user, and none is set", s.Name)}).
			advise("set sasl_user, or username in sasl.jaas.config")
	case s.Password == "":
		return (&ConfigError{Reason: fmt.Sprintf("SASL %s needs a password, and none is set", s.Name)}).
			advise("set sasl_password_file or sasl_password_command, $KSHARE_SASL_PASSWORD, or password in sasl.jaas.config")
	}
	return nil
}

// CheckMechanism returns a *ConfigError unless name is a mechanism.
func CheckMechanism(name string) error {
	if slices.Contains(Mechanisms(), name) {
		return nil
	}
	e := keyError("sasl.mechanism", "%q is not supported: want one of %s", name, strings.Join(Mechanisms(), ", "))
	if i := slices.IndexFunc(Mechanisms(), func(m string) bool { return strings.EqualFold(m, name) }); i >= 0 {
		e.Advice = "mechanisms are upper case: " + Mechanisms()[i]
	}
	return e
}

// authenticateTimeout bounds what is asked for while a connection is
// authenticated: a token, the output of a command.
const authenticateTimeout = 30 * time.Second

// bounded returns a context for that.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		d = authenticateTimeout
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %s", d))
}
