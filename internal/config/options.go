package config

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kshare/kshare/cluster/auth"
)

// Ask asks a person for a secret, such as "password of alice". It fails where
// nobody can be asked.
type Ask func(ctx context.Context, what string) (auth.Secret, error)

// Options makes of the settings how to prove who one is. It reads the files and
// runs the commands that secrets come from, and asks for what is missing; ask may
// be nil. Tokens are not among that: they are had when a connection needs one. It
// may return *Error, *auth.ConfigError and *auth.CredentialError, or the error of
// ask.
func (r *Resolved) Options(ctx context.Context, ask Ask) (auth.Options, error) {
	return (&builder{Resolved: r, ctx: ctx, ask: ask}).options()
}

// CheckOptions is [Resolved.Options] as far as it goes without running a command
// and asking anybody: there a secret is taken to be right, and a key whose
// password it is, is left out.
func (r *Resolved) CheckOptions() (auth.Options, error) {
	return (&builder{Resolved: r, offline: true}).options()
}

// ErrAttended says that a secret is not had without running a command or asking
// somebody.
var ErrAttended = errors.New("a secret comes from a command, or from whoever is asked for it")

// UnattendedOptions is [Resolved.Options] for where nobody may be disturbed: it
// runs no command and asks nobody, and neither does a connection that is made of
// what it returns. Where that cannot be it returns ErrAttended.
func (r *Resolved) UnattendedOptions(ctx context.Context) (auth.Options, error) {
	o, err := (&builder{Resolved: r, ctx: ctx, unattended: true}).options()
	if err == nil && r.runsCommands(o.SASL) {
		err = ErrAttended
	}
	return o, err
}

// runsCommands reports whether a mechanism runs commands when it authenticates.
func (r *Resolved) runsCommands(s *auth.SASL) bool {
	switch {
	case s == nil:
		return false
	case s.Name == auth.MechanismOAuthBearer:
		return len(s.OAuth.TokenCommand) > 0
	case s.Name == auth.MechanismAWSMSKIAM:
		return s.AWS.RunsCommand()
	}
	return false
}

// builder makes options of settings.
type builder struct {
	*Resolved
	ctx        context.Context //nolint:containedctx // of one call
	ask        Ask
	offline    bool
	unattended bool
}

// unknownSecret stands for one that is not looked up.
const unknownSecret auth.Secret = "unknown"

func (b *builder) options() (auth.Options, error) {
	var o auth.Options
	if b.Properties != nil {
		o = b.Properties.Options
	}
	if err := b.tls(&o); err != nil {
		return o, err
	}
	return o, b.sasl(&o)
}

func (b *builder) tls(o *auth.Options) error {
	if err := b.checkNoTLS(); err != nil {
		return err
	}
	wants := b.wantsTLS()
	switch {
	case wants != nil && !*wants:
		o.TLS = nil
	case wants != nil && o.TLS == nil:
		o.TLS = &auth.TLS{}
	}
	if o.TLS == nil {
		return nil
	}
	t := *o.TLS
	o.TLS = &t
	if ca := b.text(TLSCA); ca != "" {
		t.Trust = auth.TrustStore{File: ca, Type: "PEM"}
	}
	cert, key := b.text(TLSCert), b.text(TLSKey)
	if cert != "" || key != "" {
		if cert == "" || key == "" {
			return errorf("", "%s and %s need each other", TLSCert, TLSKey).advise("give the same file twice if it has both")
		}
		t.Key = auth.KeyStore{CertificateFile: cert, KeyFile: key}
	}
	password, err := b.secret(TLSKeyPassword, TLSKeyPasswordFile, TLSKeyPasswordCommand)
	if err != nil {
		return err
	}
	if password != "" {
		t.Key.KeyPassword = password
	}
	if b.offline && len(b.list(TLSKeyPasswordCommand)) > 0 {
		t.Key = auth.KeyStore{}
	}
	if name := b.text(TLSServerName); name != "" {
		t.ServerName, t.SkipHostName = name, false
	}
	t.SkipVerify = b.bool(TLSSkipVerify)
	return nil
}

// checkNoTLS refuses a command line that asks for TLS and says not to use it.
func (r *Resolved) checkNoTLS() error {
	if r.bool(TLS) || r.origins[TLS].Source != FromFlag {
		return nil
	}
	for _, k := range r.askForTLS() {
		if o := r.origins[k]; o.Source == FromFlag {
			return errorf("--"+o.Name, "is set, and --tls=false says not to connect by TLS").advise("leave out one of them")
		}
	}
	return nil
}

// secret returns what a group of settings comes to; "" if none is set.
func (b *builder) secret(plain, file, command Key) (auth.Secret, error) {
	argv := b.list(command)
	switch {
	case b.text(file) != "":
		return auth.ReadSecretFile(b.text(file))
	case len(argv) > 0 && b.offline:
		return unknownSecret, nil
	case len(argv) > 0 && b.unattended:
		return "", ErrAttended
	case len(argv) > 0:
		return auth.CommandSecret(b.ctx, argv)
	}
	return auth.Secret(b.text(plain)), nil
}

// askFor asks for a secret that is not set; "" where nobody is to be asked.
func (b *builder) askFor(what string) (auth.Secret, error) {
	switch {
	case b.offline:
		return unknownSecret, nil
	case b.unattended:
		return "", ErrAttended
	case b.ask == nil:
		return "", nil
	}
	return b.ask(b.ctx, what)
}

func (b *builder) sasl(o *auth.Options) error {
	var s auth.SASL
	if o.SASL != nil {
		s = *o.SASL
	}
	if m := b.text(SASLMechanism); m != "" {
		if err := auth.CheckMechanism(m); err != nil {
			return err
		}
		s.Name = m
	}
	if s.Name == "" {
		return b.checkNoSASL()
	}
	o.SASL = &s
	s.User = cmp.Or(b.text(SASLUser), s.User)
	password, err := b.secret(SASLPassword, SASLPasswordFile, SASLPasswordCommand)
	if err != nil {
		return err
	}
	s.Password = cmp.Or(password, s.Password)
	switch s.Name {
	case auth.MechanismOAuthBearer:
		return b.oauth(&s.OAuth)
	case auth.MechanismAWSMSKIAM:
		s.AWS.Profile = cmp.Or(b.text(SASLAWSProfile), s.AWS.Profile)
		s.AWS.UserAgent, s.AWS.Getenv = b.ClientID(), b.getenv
		return nil
	case auth.MechanismGSSAPI:
		b.kerberos(&s.Kerberos)
		if s.Kerberos.Keytab != "" || s.Kerberos.TicketCache != "" {
			return nil
		}
	}
	if s.Password == "" && s.User != "" {
		s.Password, err = b.askFor("password of " + s.User + " for SASL " + s.Name)
	}
	return err
}

// checkNoSASL refuses settings that look as if SASL was meant.
func (r *Resolved) checkNoSASL() error {
	for _, k := range []Key{SASLUser, SASLPassword, SASLPasswordFile, SASLPasswordCommand, SASLToken, SASLTokenFile, SASLTokenCommand, SASLOAuthTokenURL} {
		// A variable that is always set, or a part of a context, is no mistake.
		if o, set := r.origins[k]; set && o.Source == FromFlag {
			return errorf("--"+o.Name, "is set, and no SASL mechanism").advise("add --sasl-mechanism, such as SCRAM-SHA-512")
		}
	}
	return nil
}

func (b *builder) kerberos(k *auth.Kerberos) {
	k.Service = cmp.Or(b.text(SASLKerberosService), k.Service)
	if b.text(SASLKerberosKeytab)+b.text(SASLKerberosTicketCache) != "" {
		k.Keytab, k.TicketCache = b.text(SASLKerberosKeytab), b.text(SASLKerberosTicketCache)
	}
	k.Config = cmp.Or(b.text(SASLKerberosConfig), k.Config)
}

func (b *builder) oauth(o *auth.OAuth) error {
	token, file, command, url := b.text(SASLToken), b.text(SASLTokenFile), b.list(SASLTokenCommand), b.text(SASLOAuthTokenURL)
	if token+file+url != "" || len(command) > 0 {
		// The source of tokens is replaced as a whole.
		*o = auth.OAuth{Token: auth.Secret(token), TokenFile: file, TokenCommand: command, TokenURL: url, Extensions: o.Extensions}
	}
	o.ClientID = cmp.Or(b.text(SASLOAuthClientID), o.ClientID)
	secret, err := b.secret(SASLOAuthClientSecret, SASLOAuthClientSecretFile, SASLOAuthClientSecretCommand)
	if err != nil {
		return err
	}
	o.ClientSecret = cmp.Or(secret, o.ClientSecret)
	o.Scope = cmp.Or(b.text(SASLOAuthScope), o.Scope)
	if p := b.pairs(SASLOAuthParams); len(p) > 0 {
		o.Params = p
	}
	if p := b.pairs(SASLOAuthExtensions); len(p) > 0 {
		o.Extensions = p
	}
	if ca := b.text(SASLOAuthCA); ca != "" {
		o.TLS = &auth.TLS{Trust: auth.TrustStore{File: ca, Type: "PEM"}}
	}
	if o.TokenURL != "" && o.ClientID != "" && o.ClientSecret == "" {
		o.ClientSecret, err = b.askFor("secret of OAuth client " + o.ClientID)
	}
	return err
}

// SecretFiles are the files with secrets that the settings name, so that one can
// look at who may read them.
func (r *Resolved) SecretFiles() []string {
	var out []string
	for _, k := range []Key{TLSKey, TLSKeyPasswordFile, SASLPasswordFile, SASLTokenFile, SASLOAuthClientSecretFile, SASLKerberosKeytab} {
		if f := r.text(k); f != "" {
			out = append(out, f)
		}
	}
	if r.Properties != nil && slices.ContainsFunc(r.Properties.Used, func(u auth.UsedProperty) bool { return u.Secret }) {
		out = append(out, r.Properties.File)
	}
	return out
}
