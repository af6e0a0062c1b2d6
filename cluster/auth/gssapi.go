package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/kerberos"
)

// Kerberos says where the tickets of GSSAPI come from: the first of Keytab,
// TicketCache and the password that is set.
type Kerberos struct {
	Service     string // the brokers' service name; "" is kafka
	Keytab      string // file
	TicketCache string // file, as kinit writes it
	Config      string // file; "" is /etc/krb5.conf
}

const (
	defaultKerberosService = "kafka"
	defaultKerberosConfig  = "/etc/krb5.conf"
)

// mechanism returns GSSAPI. Each connection has a Kerberos client of its own,
// since that of the library cannot be used by several at once.
func (k Kerberos) mechanism(principal string, password Secret) (sasl.Mechanism, error) {
	if k.Service == "" {
		k.Service = defaultKerberosService
	}
	if k.Config == "" {
		k.Config = defaultKerberosConfig
	}
	// What is wrong with the files is told now, and not at the first connection.
	if _, err := k.client(principal, password); err != nil {
		return nil, err
	}
	return kerberos.Kerberos(func(context.Context) (kerberos.Auth, error) {
		cl, err := k.client(principal, password)
		if err != nil {
			return kerberos.Auth{}, err
		}
		return kerberos.Auth{Service: k.Service, ClientFn: func(context.Context) *client.Client { return cl }}, nil
	}), nil
}

func (k Kerberos) client(principal string, password Secret) (*client.Client, error) {
	cfg, err := config.Load(k.Config)
	// Directives that the library does not know are no reason to give up.
	if err != nil && !errors.As(err, new(config.UnsupportedDirective)) {
		return nil, fileError(k.Config, "Kerberos configuration", err)
	}
	user, realm, _ := strings.Cut(principal, "@")
	if realm == "" {
		realm = cfg.LibDefaults.DefaultRealm
	}
	// FAST with pre-authentication is what KDCs that are not Microsoft's want off.
	settings := client.DisablePAFXFAST(true)
	switch {
	case k.Keytab == "" && k.TicketCache != "":
		cache, err := credentials.LoadCCache(strings.TrimPrefix(k.TicketCache, "FILE:"))
		if err != nil {
			return nil, fileError(k.TicketCache, "Kerberos ticket cache", err)
		}
		cl, err := client.NewFromCCache(cache, cfg, settings)
		if err != nil {
			return nil, fileError(k.TicketCache, "Kerberos ticket cache", err)
		}
		return cl, nil
	case user == "":
		return nil, (&ConfigError{Reason: "SASL GSSAPI needs a principal, and none is set"}).
			advise("set sasl_user, or principal in sasl.jaas.config")
	case k.Keytab != "":
		tab, err := keytab.Load(k.Keytab)
		if err != nil {
			return nil, fileError(k.Keytab, "Kerberos keytab", err)
		}
		return client.NewWithKeytab(user, realm, tab, cfg, settings), nil
	case password != "":
		return client.NewWithPassword(user, realm, string(password), cfg, settings), nil
	}
	return nil, (&ConfigError{Reason: "SASL GSSAPI needs a keytab, a ticket cache or a password, and none is set"}).
		advise("set sasl_kerberos_keytab or sasl_kerberos_ticket_cache, or keyTab in sasl.jaas.config")
}

// defaultTicketCache is where kinit leaves tickets.
func defaultTicketCache() string {
	return cmp.Or(os.Getenv("KRB5CCNAME"), fmt.Sprintf("/tmp/krb5cc_%d", os.Getuid()))
}

func fileError(file, what string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err // the message has the name already
	}
	return &ConfigError{File: file, Reason: "read " + what, Err: err}
}
