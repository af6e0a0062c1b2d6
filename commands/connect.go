package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/spf13/pflag"
)

// connection is what a command that needs a cluster can be told about it, beside
// --bootstrap-server. What is not given has its zero value.
type connection struct {
	Dialect string // "" decides by what the brokers advertise

	Context       string
	CommandConfig string

	TLS           optionalBool
	TLSCA         string
	TLSCert       string
	TLSKey        string
	TLSServerName string
	TLSSkipVerify optionalBool

	SASLMechanism       string
	SASLUser            string
	SASLPasswordFile    string
	SASLPasswordCommand string
}

// connectionAnnotation marks flags that all commands which connect have, so that
// a help text can list them apart.
const connectionAnnotation = "kshare connection"

func (c *connection) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&c.Dialect, "dialect", "", "assume `name` where the brokers' ApiVersions are ambiguous: "+dialectChoice())
	c.addWithoutDialect(fs)
}

// addWithoutDialect is for commands to which the dialect makes no difference.
func (c *connection) addWithoutDialect(fs *pflag.FlagSet) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	own.StringVar(&c.Context, "context", "", "use the context `name` of the configuration file")
	own.StringVar(&c.CommandConfig, "command-config", "", "use a client.properties `file` of Kafka's tools in place of a context")
	addOptionalBool(own, &c.TLS, "tls", "connect by TLS, as any other --tls flag does")
	own.StringVar(&c.TLSCA, "tls-ca", "", "trust the CAs in a PEM `file` in place of the system's")
	own.StringVar(&c.TLSCert, "tls-cert", "", "show the certificate in a PEM `file` to the brokers")
	own.StringVar(&c.TLSKey, "tls-key", "", "key of that certificate, a PEM `file`")
	own.StringVar(&c.TLSServerName, "tls-server-name", "", "`name` that the brokers' certificate must be for, in place of the host")
	addOptionalBool(own, &c.TLSSkipVerify, "tls-skip-verify", "trust any certificate")
	own.StringVar(&c.SASLMechanism, "sasl-mechanism", "", "authenticate by SASL `mechanism`: "+strings.Join(auth.Mechanisms(), ", "))
	own.StringVar(&c.SASLUser, "sasl-user", "", "`user` for SASL; for GSSAPI the principal")
	own.StringVar(&c.SASLPasswordFile, "sasl-password-file", "", "read the password from a `file`")
	own.StringVar(&c.SASLPasswordCommand, "sasl-password-command", "", "take the password from what a `command` writes; it is run without a shell")
	mark := map[string][]string{connectionAnnotation: {"true"}} // one for all: nothing else is noted of them
	own.VisitAll(func(f *pflag.Flag) {
		f.Annotations = mark
		fs.AddFlag(f)
	})
}

// optionalBool is the value of a flag that can be told from one that is not
// given: "", "true" or "false".
type optionalBool string

func addOptionalBool(fs *pflag.FlagSet, b *optionalBool, name, usage string) {
	fs.VarPF(b, name, "", usage).NoOptDefVal = "true"
}

// Set takes what strconv.ParseBool takes.
func (b *optionalBool) Set(s string) error {
	v, err := strconv.ParseBool(s)
	*b = optionalBool(strconv.FormatBool(v))
	return err
}

// String returns the value.
func (b *optionalBool) String() string { return string(*b) }

// Type makes pflag write the flag as one that needs no value.
func (*optionalBool) Type() string { return "bool" }

// given returns the settings that flags have given.
func (c connection) given(bootstrap []string) map[config.Key]string {
	out := make(map[config.Key]string)
	for key, text := range map[config.Key]string{
		config.BootstrapServer:     strings.Join(bootstrap, ","),
		config.Dialect:             c.Dialect,
		config.Context:             c.Context,
		config.CommandConfig:       c.CommandConfig,
		config.TLS:                 string(c.TLS),
		config.TLSCA:               c.TLSCA,
		config.TLSCert:             c.TLSCert,
		config.TLSKey:              c.TLSKey,
		config.TLSServerName:       c.TLSServerName,
		config.TLSSkipVerify:       string(c.TLSSkipVerify),
		config.SASLMechanism:       c.SASLMechanism,
		config.SASLUser:            c.SASLUser,
		config.SASLPasswordFile:    c.SASLPasswordFile,
		config.SASLPasswordCommand: c.SASLPasswordCommand,
	} {
		if text != "" {
			out[key] = text
		}
	}
	return out
}

// settings finds out which settings count, and warns of what may not be as it
// was meant.
func (d *Deps) settings(c connection) (*config.Resolved, error) {
	r, err := config.Resolve(config.Input{
		Flags: d.given(c), Getenv: d.Getenv, Environ: d.environ(), Path: d.configPath(),
		ClientID: cluster.DefaultClientID(buildVersion()),
	})
	if err != nil {
		return nil, err
	}
	for _, w := range r.Warnings {
		d.Warn(w)
	}
	d.used, d.zone = c, r.TimeZone()
	return r, nil
}

// given returns the settings that flags have given, the global ones among them.
func (d *Deps) given(c connection) map[config.Key]string {
	out := c.given(d.flags.Bootstrap)
	if d.flags.TimeZone != "" {
		out[config.TimeZone] = d.flags.TimeZone
	}
	return out
}

// environ is the environment as a whole; nil where it is not known.
func (d *Deps) environ() []string {
	if d.Environ == nil {
		return nil
	}
	return d.Environ()
}

// configPath is where the configuration file is; "" if it has no place.
func (d *Deps) configPath() string { return config.Path(d.Getenv, d.ConfigDir) }

// connect opens a connection to the cluster that the settings name. The caller
// closes it.
func (d *Deps) connect(ctx context.Context, c connection) (*cluster.Client, error) {
	r, err := d.settings(c)
	if err != nil {
		return nil, err
	}
	cfg, _, err := d.clusterConfig(ctx, r)
	if err != nil {
		return nil, err
	}
	return d.connected(cluster.Connect(ctx, cfg))
}

// connected notes which cluster a command talks to.
func (d *Deps) connected(cl *cluster.Client, err error) (*cluster.Client, error) {
	if err == nil {
		d.clusterID = cl.ClusterID()
	}
	return cl, err
}

// connectSandbox opens a connection to a sandbox of this process, for which no
// setting counts.
func connectSandbox(ctx context.Context, servers, dialect string) (*cluster.Client, error) {
	return cluster.Connect(ctx, cluster.Config{
		BootstrapServers: strings.Split(servers, ","), Dialect: dialect, Version: buildVersion(),
	})
}

// clusterConfig is the configuration of a client, with the secrets it needs, and
// as whom it connects.
func (d *Deps) clusterConfig(ctx context.Context, r *config.Resolved) (cluster.Config, auth.Options, error) {
	return d.clusterConfigWith(r, func() (auth.Options, error) { return r.Options(ctx, d.askSecret) })
}

// clusterConfigWith is [Deps.clusterConfig] with another way to the secrets.
func (d *Deps) clusterConfigWith(r *config.Resolved, options func() (auth.Options, error)) (cluster.Config, auth.Options, error) {
	servers, err := d.bootstrap(r)
	if err != nil {
		return cluster.Config{}, auth.Options{}, err
	}
	cfg := cluster.Config{
		BootstrapServers: servers, Dialect: r.Dialect(),
		ClientID: r.ClientID(), Version: buildVersion(),
	}
	if err := checkDialect(cfg.Dialect); err != nil {
		return cfg, auth.Options{}, fmt.Errorf("%s: %w", r.DialectOrigin(), err)
	}
	if r.Properties != nil {
		cfg.DialTimeout = r.Properties.DialTimeout
	}
	opts, err := options()
	if err != nil {
		return cfg, opts, err
	}
	cfg.TLS, cfg.SASL, err = opts.Client()
	return cfg, opts, err
}

// bootstrap returns the brokers to connect to first; a usage error if nothing
// names any.
func (d *Deps) bootstrap(r *config.Resolved) ([]string, error) {
	servers, origin := r.BootstrapServers()
	for _, s := range servers {
		if !isServer(s) {
			err := usagef("bootstrap server %q: want HOST:PORT with a port from 1 to %d, and brackets around an IPv6 address", withoutUser(s), maxPort)
			if origin.Source != config.FromFlag {
				err = fmt.Errorf("%s: %w", origin, err)
			}
			return nil, err
		}
	}
	if len(servers) > 0 {
		return servers, nil
	}
	env, _ := config.Find(config.BootstrapServer)
	if r.Context != "" {
		return nil, hintf(usagef("no cluster to connect to: context %q has no bootstrap_server", r.Context),
			"%s", setServerLine(r.Context))
	}
	err := usagef("no cluster to connect to")
	if !r.Contexts.Exists && d.Getenv("KSHARE_CONFIG") != "" { // whoever names a file means to connect by it
		err = usagef("no cluster to connect to: $KSHARE_CONFIG: %s does not exist", r.Contexts.Path)
	}
	return nil, hintf(err,
		"give --bootstrap-server HOST:PORT, --command-config FILE or --context NAME, or set %s; without a cluster, 'kshare sandbox run' starts one", env.Env())
}

// setServerLine is the command that gives a context a bootstrap server.
func setServerLine(context string) string {
	word, ok := output.ShellQuote(context)
	if !ok || strings.HasPrefix(context, "-") {
		word = "NAME"
	}
	return "kshare config set-context " + word + " -b HOST:PORT"
}

// withoutUser is an address that is none, for a message: who put a user before it
// may have put a password there too.
func withoutUser(address string) string {
	if i := strings.LastIndexByte(address, '@'); i >= 0 {
		return "***" + address[i:]
	}
	return address
}

// askSecret asks a person for a secret, on a terminal alone.
func (d *Deps) askSecret(_ context.Context, what string) (auth.Secret, error) {
	if !d.StdinTTY || !d.StderrTTY || d.ReadPassword == nil {
		return "", hintf(usagef("the %s is not set, and there is no terminal to ask for it", what),
			"set it by a file or a command, such as sasl_password_file or sasl_password_command")
	}
	fmt.Fprintf(d.ErrOut, "kshare: %s: ", output.Escape(what))
	b, err := d.ReadPassword()
	fmt.Fprintln(d.ErrOut) // the line feed was not shown
	if err != nil {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	return auth.Secret(b), nil
}

// command completes a command line of kshare, so that it can be run as it is
// printed: with the flags that say which cluster.
func (d *Deps) command(line string) string {
	if len(d.flags.Bootstrap) > 0 {
		line += " -b " + strings.Join(d.flags.Bootstrap, ",")
	}
	for _, f := range []struct{ flag, value string }{{"context", d.used.Context}, {"command-config", d.used.CommandConfig}} {
		if word, ok := output.ShellQuote(f.value); ok && f.value != "" {
			line += " --" + f.flag + " " + word
		}
	}
	return line
}

// dialectChoice names the dialects in a help text.
func dialectChoice() string { return strings.Join(dialectNames(), " or ") }
