package config

import (
	"cmp"
	"context"

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
	var o auth.Options
	if r.Properties != nil {
		o = r.Properties.Options
	}
	if err := r.tls(ctx, &o); err != nil {
		return o, err
	}
	return o, r.sasl(ctx, &o, ask)
}

func (r *Resolved) tls(ctx context.Context, o *auth.Options) error {
	wants := r.wantsTLS()
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
	if ca := r.text(TLSCA); ca != "" {
		t.Trust = auth.TrustStore{File: ca, Type: "PEM"}
	}
	cert, key := r.text(TLSCert), r.text(TLSKey)
	if cert != "" || key != "" {
		if cert == "" || key == "" {
			return errorf("", "%s and %s need each other", TLSCert, TLSKey).advise("give the same file twice if it has both")
		}
		t.Key = auth.KeyStore{CertificateFile: cert, KeyFile: key}
	}
	password, err := r.secret(ctx, TLSKeyPassword, TLSKeyPasswordFile, TLSKeyPasswordCommand)
	if err != nil {
		return err
	}
	if password != "" {
		t.Key.KeyPassword = password
	}
	if name := r.text(TLSServerName); name != "" {
		t.ServerName, t.SkipHostName = name, false
	}
	t.SkipVerify = r.bool(TLSSkipVerify)
	return nil
}

// secret returns what a group of settings comes to; "" if none is set.
func (r *Resolved) secret(ctx context.Context, plain, file, command Key) (auth.Secret, error) {
	switch {
	case r.text(file) != "":
		return auth.ReadSecretFile(r.text(file))
	case len(r.list(command)) > 0:
		return auth.CommandSecret(ctx, r.list(command))
	}
	return auth.Secret(r.text(plain)), nil
}

func (r *Resolved) sasl(ctx context.Context, o *auth.Options, ask Ask) error {
	var s auth.SASL
	if o.SASL != nil {
		s = *o.SASL
	}
	if m := r.text(SASLMechanism); m != "" {
		if err := auth.CheckMechanism(m); err != nil {
			return err
		}
		s.Name = m
	}
	if s.Name == "" {
		return r.checkNoSASL()
	}
	o.SASL = &s
	s.User = cmp.Or(r.text(SASLUser), s.User)
	password, err := r.secret(ctx, SASLPassword, SASLPasswordFile, SASLPasswordCommand)
	if err != nil {
		return err
	}
	s.Password = cmp.Or(password, s.Password)
	switch s.Name {
	case auth.MechanismOAuthBearer:
		return r.oauth(ctx, &s.OAuth, ask)
	case auth.MechanismAWSMSKIAM:
		s.AWS.Profile = cmp.Or(r.text(SASLAWSProfile), s.AWS.Profile)
		s.AWS.UserAgent = r.ClientID()
		return nil
	case auth.MechanismGSSAPI:
		r.kerberos(&s.Kerberos)
		if s.Kerberos.Keytab != "" || s.Kerberos.TicketCache != "" {
			return nil
		}
	}
	if s.Password == "" && s.User != "" && ask != nil {
		s.Password, err = ask(ctx, "password of "+s.User+" for SASL "+s.Name)
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

func (r *Resolved) kerberos(k *auth.Kerberos) {
	k.Service = cmp.Or(r.text(SASLKerberosService), k.Service)
	if r.text(SASLKerberosKeytab)+r.text(SASLKerberosTicketCache) != "" {
		k.Keytab, k.TicketCache = r.text(SASLKerberosKeytab), r.text(SASLKerberosTicketCache)
	}
	k.Config = cmp.Or(r.text(SASLKerberosConfig), k.Config)
}

func (r *Resolved) oauth(ctx context.Context, o *auth.OAuth, ask Ask) error {
	token, file, command, url := r.text(SASLToken), r.text(SASLTokenFile), r.list(SASLTokenCommand), r.text(SASLOAuthTokenURL)
	if token+file+url != "" || len(command) > 0 {
		// The source of tokens is replaced as a whole.
		*o = auth.OAuth{Token: auth.Secret(token), TokenFile: file, TokenCommand: command, TokenURL: url, Extensions: o.Extensions}
	}
	o.ClientID = cmp.Or(r.text(SASLOAuthClientID), o.ClientID)
	secret, err := r.secret(ctx, SASLOAuthClientSecret, SASLOAuthClientSecretFile, SASLOAuthClientSecretCommand)
	if err != nil {
		return err
	}
	o.ClientSecret = cmp.Or(secret, o.ClientSecret)
	o.Scope = cmp.Or(r.text(SASLOAuthScope), o.Scope)
	if p := r.pairs(SASLOAuthParams); len(p) > 0 {
		o.Params = p
	}
	if p := r.pairs(SASLOAuthExtensions); len(p) > 0 {
		o.Extensions = p
	}
	if ca := r.text(SASLOAuthCA); ca != "" {
		o.TLS = &auth.TLS{Trust: auth.TrustStore{File: ca, Type: "PEM"}}
	}
	if o.TokenURL != "" && o.ClientID != "" && o.ClientSecret == "" && ask != nil {
		o.ClientSecret, err = ask(ctx, "secret of OAuth client "+o.ClientID)
	}
	return err
}
