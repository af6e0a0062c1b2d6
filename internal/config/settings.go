package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/mattn/go-shellwords"
)

// Key names a setting, in files and in the environment.
type Key string

// The settings.
const (
	BootstrapServer Key = "bootstrap_server"
	Context         Key = "context"
	CommandConfig   Key = "command_config"
	ClientID        Key = "client_id"
	Dialect         Key = "dialect"
	TimeZone        Key = "time_zone"

	TLS                   Key = "tls"
	TLSCA                 Key = "tls_ca"
	TLSCert               Key = "tls_cert"
	TLSKey                Key = "tls_key"
	TLSKeyPassword        Key = "tls_key_password"
	TLSKeyPasswordFile    Key = "tls_key_password_file"
	TLSKeyPasswordCommand Key = "tls_key_password_command"
	TLSServerName         Key = "tls_server_name"
	TLSSkipVerify         Key = "tls_skip_verify"

	SASLMechanism                Key = "sasl_mechanism"
	SASLUser                     Key = "sasl_user"
	SASLPassword                 Key = "sasl_password"
	SASLPasswordFile             Key = "sasl_password_file"
	SASLPasswordCommand          Key = "sasl_password_command"
	SASLToken                    Key = "sasl_token"
	SASLTokenFile                Key = "sasl_token_file"
	SASLTokenCommand             Key = "sasl_token_command"
	SASLOAuthTokenURL            Key = "sasl_oauth_token_url"
	SASLOAuthClientID            Key = "sasl_oauth_client_id"
	SASLOAuthClientSecret        Key = "sasl_oauth_client_secret"
	SASLOAuthClientSecretFile    Key = "sasl_oauth_client_secret_file"
	SASLOAuthClientSecretCommand Key = "sasl_oauth_client_secret_command"
	SASLOAuthScope               Key = "sasl_oauth_scope"
	SASLOAuthParams              Key = "sasl_oauth_params"
	SASLOAuthExtensions          Key = "sasl_oauth_extensions"
	SASLOAuthCA                  Key = "sasl_oauth_ca"
	SASLAWSProfile               Key = "sasl_aws_profile"
	SASLKerberosService          Key = "sasl_kerberos_service"
	SASLKerberosKeytab           Key = "sasl_kerberos_keytab"
	SASLKerberosTicketCache      Key = "sasl_kerberos_ticket_cache"
	SASLKerberosConfig           Key = "sasl_kerberos_config"
)

// Kind is what the value of a setting is.
type Kind int8

// The kinds. In a flag and in the environment a value is text, in a file it may
// be a list or a map where that is said.
const (
	Text    Kind = iota
	Secret       // text that is never shown
	Bool         // true or false
	URL          // text whose password is not shown
	File         // path; a relative one in a context starts where that file is
	List         // separated by commas, or a list
	Pairs        // name=value, separated by commas; or a map, or a list
	Zone         // a time zone, see ParseTimeZone
	Command      // a program and its arguments, quoted as for a shell; or a list
)

// Setting is one row of [Settings].
type Setting struct {
	Key  Key
	Kind Kind
	Flag string // without dashes; "" if there is none
	// Group is what settings that exclude each other have in common.
	Group Key
	About string // starts in lower case
}

// envPrefix is what the names of kshare's environment variables begin with.
const envPrefix = "KSHARE_"

// Env is the environment variable of the setting.
func (s Setting) Env() string { return envPrefix + strings.ToUpper(string(s.Key)) }

// InContext reports whether a context may have the setting.
func (s Setting) InContext() bool { return s.Key != Context }

// Settings returns all settings, in the order in which they are shown. The slice
// is the caller's.
func Settings() []Setting {
	return []Setting{
		{BootstrapServer, List, "bootstrap-server", "", "brokers to connect to first"},
		{Context, Text, "context", "", "context of the configuration file to use"},
		{CommandConfig, File, "command-config", "", "client.properties of Kafka's Java tools"},
		{ClientID, Text, "", "", "client ID to send with each request"},
		{Dialect, Text, "dialect", "", "dialect to assume where the brokers' ApiVersions are ambiguous"},
		{TimeZone, Zone, "time-zone", "", "time zone of tables: UTC, Local, or a name such as Europe/Paris"},

		{TLS, Bool, "tls", "", "connect by TLS; any other tls setting says so too"},
		{TLSCA, File, "tls-ca", "", "PEM file of the CA to trust in place of the system's"},
		{TLSCert, File, "tls-cert", "", "PEM file of the client's certificate"},
		{TLSKey, File, "tls-key", "", "PEM file of the key of that"},
		{TLSKeyPassword, Secret, "", TLSKeyPassword, "password of the key"},
		{TLSKeyPasswordFile, File, "", TLSKeyPassword, "file with the password of the key"},
		{TLSKeyPasswordCommand, Command, "", TLSKeyPassword, "command that writes the password of the key"},
		{TLSServerName, Text, "tls-server-name", "", "name that the brokers' certificate must be for, in place of the host"},
		{TLSSkipVerify, Bool, "tls-skip-verify", "", "trust any certificate"},

		{SASLMechanism, Text, "sasl-mechanism", "", "SASL mechanism"},
		{SASLUser, Text, "sasl-user", "", "user; for GSSAPI the principal"},
		{SASLPassword, Secret, "", SASLPassword, "password of the user"},
		{SASLPasswordFile, File, "sasl-password-file", SASLPassword, "file with the password"},
		{SASLPasswordCommand, Command, "sasl-password-command", SASLPassword, "command that writes the password"},
		{SASLToken, Secret, "", SASLToken, "token for OAUTHBEARER"},
		{SASLTokenFile, File, "", SASLToken, "file with the token, read again when it expires"},
		{SASLTokenCommand, Command, "", SASLToken, "command that writes a token, run again when it expires"},
		{SASLOAuthTokenURL, URL, "", SASLToken, "endpoint that gives tokens for client credentials"},
		{SASLOAuthClientID, Text, "", "", "ID of the client at the endpoint"},
		{SASLOAuthClientSecret, Secret, "", SASLOAuthClientSecret, "secret of the client"},
		{SASLOAuthClientSecretFile, File, "", SASLOAuthClientSecret, "file with the secret of the client"},
		{SASLOAuthClientSecretCommand, Command, "", SASLOAuthClientSecret, "command that writes the secret of the client"},
		{SASLOAuthScope, Text, "", "", "scope to ask the endpoint for"},
		{SASLOAuthParams, Pairs, "", "", "further parameters for the endpoint, such as audience"},
		{SASLOAuthExtensions, Pairs, "", "", "SASL extensions to send to the broker (KIP-342)"},
		{SASLOAuthCA, File, "", "", "PEM file of the CA of the endpoint"},
		{SASLAWSProfile, Text, "", "", "AWS profile for AWS_MSK_IAM"},
		{SASLKerberosService, Text, "", "", "service name of the brokers for GSSAPI, kafka unless set"},
		{SASLKerberosKeytab, File, "", SASLKerberosKeytab, "keytab for GSSAPI"},
		{SASLKerberosTicketCache, File, "", SASLKerberosKeytab, "ticket cache for GSSAPI"},
		{SASLKerberosConfig, File, "", "", "Kerberos configuration, /etc/krb5.conf unless set"},
	}
}

// nearest returns the setting that a name which is none was meant for, if it is
// nearly its key: but for case, signs between words, a plural, and one letter in
// four, two at most.
func nearest(name string) (Setting, bool) {
	flat := func(key string) string {
		return strings.TrimSuffix(strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(key)), "s")
	}
	var found Setting
	least := -1
	for _, s := range Settings() {
		key := flat(string(s.Key))
		d := levenshtein.ComputeDistance(flat(name), key)
		if d <= min(2, len(key)/4) && (least < 0 || d < least) {
			found, least = s, d
		}
	}
	return found, least >= 0
}

// Find returns the setting of a key.
func Find(key Key) (Setting, bool) {
	all := Settings()
	i := slices.IndexFunc(all, func(s Setting) bool { return s.Key == key })
	if i < 0 {
		return Setting{}, false
	}
	return all[i], true
}

// value is the value of a setting: a string, a bool or a []string.
type value any

// ParseText reads the text that a flag or the environment has, for a check. The
// error does not have it.
func (s Setting) ParseText(text string) error {
	_, err := s.parseText(text)
	return err
}

func (s Setting) parseText(text string) (value, error) {
	switch s.Kind {
	case Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("want true or false")
		}
		return b, nil
	case List:
		return splitList(text), nil
	case Pairs:
		pairs := splitList(text)
		return pairs, checkPairs(pairs)
	case Command:
		return splitCommand(text)
	case Zone:
		_, err := ParseTimeZone(text)
		return text, err
	case Text, Secret, URL, File:
	}
	return text, nil
}

// ParseTimeZone returns the time zone of that name: UTC, Local, which is that of
// the process, whatever their case, or one of the IANA time zone database. The
// error says what it wants.
func ParseTimeZone(name string) (*time.Location, error) {
	for _, zone := range []*time.Location{time.UTC, time.Local} {
		if strings.EqualFold(name, zone.String()) {
			return zone, nil
		}
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" { // its text may have paths of the machine
		return nil, fmt.Errorf("no such time zone: want UTC, Local, or a name such as Europe/Paris")
	}
	return zone, nil
}

func splitList(text string) []string {
	out := []string{}
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

func checkPairs(pairs []string) error {
	for _, p := range pairs {
		if name, _, ok := strings.Cut(p, "="); !ok || name == "" {
			return fmt.Errorf("want NAME=VALUE")
		}
	}
	return nil
}

// splitCommand splits a command into words, as a shell does, and runs no shell:
// nothing in it is expanded.
func splitCommand(text string) ([]string, error) {
	p := shellwords.NewParser()
	argv, err := p.Parse(text)
	switch {
	case err != nil: // the library's error has nothing of the text in it
		return nil, fmt.Errorf("is no command: %w", err)
	case p.Position >= 0:
		return nil, fmt.Errorf("has something for a shell, and none is involved: put it into a script, or run one yourself, as in sh -c '...'")
	case len(argv) == 0 || argv[0] == "":
		return nil, fmt.Errorf("names no program")
	}
	return argv, nil
}

// parseAny reads what a file has.
func (s Setting) parseAny(x any) (value, error) {
	switch x := x.(type) {
	case string:
		return s.parseText(x)
	case bool:
		if s.Kind == Bool {
			return x, nil
		}
	case []any:
		list, ok := stringList(x)
		switch {
		case !ok:
			return nil, fmt.Errorf("want a list of texts: put quotes around them")
		case s.Kind == List:
			return list, nil
		case s.Kind == Pairs:
			return list, checkPairs(list)
		case s.Kind == Command && len(list) > 0 && list[0] != "":
			return list, nil
		}
		return nil, fmt.Errorf("a list is nothing for this setting")
	case nil:
		return nil, fmt.Errorf("has no value: leave the key out")
	}
	switch s.Kind {
	case Bool:
		return nil, fmt.Errorf("want true or false")
	case List, Command:
		return nil, fmt.Errorf("want a text or a list")
	case Pairs:
		return nil, fmt.Errorf("want a list of NAME=VALUE")
	case Text, Secret, URL, File, Zone:
	}
	return nil, fmt.Errorf("want a text: put quotes around it")
}

func stringList(x []any) ([]string, bool) {
	out := make([]string, 0, len(x))
	for _, e := range x {
		s, ok := e.(string)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}
