package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster/auth"
)

// Source is the kind of place that a setting comes from.
type Source string

// The sources, the strongest first.
const (
	FromFlag        Source = "flag"
	FromEnvironment Source = "environment"
	FromContext     Source = "context"
	FromProperties  Source = "properties"
	FromDefault     Source = "default"
)

// Origin is where a setting comes from.
type Origin struct {
	Source Source
	Name   string // of the flag, the variable or the context; the key in a properties file
	File   string // of a context, or a properties file
	Line   int    // of a properties file
}

// String is for people, such as "flag --tls-ca".
func (o Origin) String() string {
	switch o.Source {
	case FromFlag:
		return "flag --" + o.Name
	case FromEnvironment:
		return "environment $" + o.Name
	case FromContext:
		return fmt.Sprintf("context %s in %s", o.Name, o.File)
	case FromProperties:
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	case FromDefault:
	}
	return "default"
}

// Input is what settings are made of.
type Input struct {
	Flags  map[Key]string // those that were given
	Getenv func(string) string
	// Environ are the variables there are, "NAME=value" each, to warn of names that
	// are nearly those of settings; nil warns of none.
	Environ []string
	Path    string // of the configuration file; "" if there is none
	// ClientID is the default of the setting.
	ClientID string
}

// Resolved is what all sources together come to.
type Resolved struct {
	// Contexts is the configuration file.
	Contexts *Contexts
	// Context is the name of the context in use; "" if none is.
	Context string
	// Properties is the properties file in use; nil if none is.
	Properties *auth.ClientProperties
	// Warnings are sentences about what may not be as it was meant.
	Warnings []string

	values  map[Key]value
	origins map[Key]Origin
	getenv  func(string) string // nil is the process's
}

// Resolve finds out which settings count. It opens the configuration file and the
// properties file, and no other. It may return *Error and *auth.ConfigError.
//
// A context and a properties file both describe a connection as a whole, so one
// takes the place of the other: --command-config that of the current context.
// Both from the same place are an error; a context may name a properties file,
// whose entries its own settings replace.
func Resolve(in Input) (*Resolved, error) {
	r, err := resolve(in)
	if err != nil {
		return nil, err
	}
	return r, r.readProperties()
}

// ResolveTimeZone is the TimeZone of what [Resolve] returns, for what connects to
// nothing: it opens the configuration file alone. It may return *Error.
func ResolveTimeZone(in Input) (*time.Location, error) {
	r, err := resolve(in)
	if err != nil {
		return nil, err
	}
	return r.TimeZone(), nil
}

func resolve(in Input) (*Resolved, error) {
	contexts, err := Read(in.Path)
	if err != nil {
		return nil, err
	}
	r := &Resolved{Contexts: contexts, values: make(map[Key]value), origins: make(map[Key]Origin), getenv: in.Getenv}
	if contexts.WiderThan0600 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s has secrets and can be read by others: chmod 600 %s", in.Path, in.Path))
	}
	env, err := in.environment()
	if err != nil {
		return nil, err
	}
	r.Warnings = append(r.Warnings, in.misspelt()...)
	flags, err := in.flags()
	if err != nil {
		return nil, err
	}
	base, err := r.choose(flags, env)
	if err != nil {
		return nil, err
	}
	r.put(map[Key]value{ClientID: in.ClientID}, func(Setting) Origin { return Origin{Source: FromDefault} })
	r.put(base, func(Setting) Origin { return Origin{Source: FromContext, Name: r.Context, File: in.Path} })
	r.put(env, func(s Setting) Origin { return Origin{Source: FromEnvironment, Name: s.Env()} })
	r.put(flags, func(s Setting) Origin { return Origin{Source: FromFlag, Name: s.Flag} })
	return r, nil
}

// Context resolves a context by itself, without flags, environment and what is
// current.
func (c *Contexts) Context(name string) (*Resolved, error) {
	x, err := c.Find(name)
	if err != nil {
		return nil, err
	}
	r := &Resolved{Contexts: c, Context: name, values: make(map[Key]value), origins: make(map[Key]Origin)}
	r.put(x.values, func(Setting) Origin { return Origin{Source: FromContext, Name: name, File: c.Path} })
	return r, r.readProperties()
}

func (in Input) environment() (map[Key]value, error) {
	out := make(map[Key]value)
	for _, s := range Settings() {
		text := in.Getenv(s.Env())
		if text == "" {
			continue
		}
		v, err := s.parseText(text)
		if err != nil {
			return nil, errorf("$"+s.Env(), "%v", err)
		}
		out[s.Key] = v
	}
	return out, checkGroups("the environment", out)
}

// misspelt warns of environment variables that are no settings and look as if they
// were meant to be one that is not set. Others that begin like them may be a
// script's own.
func (in Input) misspelt() []string {
	var out []string
	for _, kv := range in.Environ {
		name, _, _ := strings.Cut(kv, "=")
		key, ours := strings.CutPrefix(name, envPrefix)
		if !ours {
			continue
		}
		if _, known := Find(Key(strings.ToLower(key))); known && key == strings.ToUpper(key) {
			continue
		}
		if s, ok := nearest(key); ok && in.Getenv(s.Env()) == "" {
			out = append(out, fmt.Sprintf("environment variable %s is no setting and not read; did you mean %s?", name, s.Env()))
		}
	}
	slices.Sort(out)
	return out
}

func (in Input) flags() (map[Key]value, error) {
	out := make(map[Key]value)
	for _, k := range sortedKeys(in.Flags) {
		s, _ := Find(k)
		v, err := s.parseText(in.Flags[k])
		if err != nil {
			return nil, errorf("--"+s.Flag, "%v", err)
		}
		out[k] = v
	}
	return out, checkGroups("the command line", out)
}

// choose takes the context and the properties file out of the flags and the
// environment, and returns what the one that counts says.
func (r *Resolved) choose(flags, env map[Key]value) (map[Key]value, error) {
	name, file := "", ""
	for _, tier := range []struct {
		values map[Key]value
		where  string
	}{{flags, "the command line"}, {env, "the environment"}} {
		n, _ := tier.values[Context].(string)
		f, _ := tier.values[CommandConfig].(string)
		if n != "" && f != "" {
			return nil, errorf(tier.where, "%s and %s exclude each other: both describe a connection", Context, CommandConfig).
				advise("a context may name the file: kshare config set-context %s --command-config %s", plain(n, "NAME"), plain(f, "FILE"))
		}
		if name == "" && file == "" {
			name, file = n, f
		} else {
			delete(tier.values, CommandConfig) // a flag has replaced it
		}
		delete(tier.values, Context)
	}
	if file != "" {
		return nil, nil
	}
	r.Context = cmp.Or(name, r.Contexts.Current)
	if r.Context == "" {
		return nil, nil
	}
	x, err := r.Contexts.Find(r.Context)
	if err != nil && name == "" {
		return nil, errorf(r.Contexts.Path+": "+keyCurrent, "there is no context %q", r.Context).
			advise("choose one: kshare config use-context NAME")
	}
	return x.values, err
}

// put adds values that are stronger than those that are there.
func (r *Resolved) put(values map[Key]value, origin func(Setting) Origin) {
	for _, s := range Settings() {
		v, set := values[s.Key]
		if !set {
			continue
		}
		if s.Group != "" {
			for _, other := range Settings() {
				if other.Group == s.Group {
					delete(r.values, other.Key)
					delete(r.origins, other.Key)
				}
			}
		}
		r.values[s.Key], r.origins[s.Key] = v, origin(s)
	}
}

func (r *Resolved) readProperties() error {
	file := r.text(CommandConfig)
	if file == "" {
		return nil
	}
	o := auth.Override{TLS: r.wantsTLS(), Mechanism: r.text(SASLMechanism)}
	p, err := auth.LoadClientProperties(file, o)
	if err != nil {
		return err
	}
	r.Properties = p
	r.Warnings = append(r.Warnings, p.Warnings()...)
	return nil
}

// wantsTLS returns whether settings say so; nil if they say nothing.
func (r *Resolved) wantsTLS() *bool {
	if b, set := r.values[TLS].(bool); set {
		return &b
	}
	if len(r.askForTLS()) > 0 {
		return new(true)
	}
	return nil
}

// askForTLS returns the settings that make no sense without TLS.
func (r *Resolved) askForTLS() []Key {
	var out []Key
	for _, k := range []Key{TLSCA, TLSCert, TLSKey, TLSServerName, TLSSkipVerify} {
		if v, set := r.values[k]; set && v != false {
			out = append(out, k)
		}
	}
	return out
}

func (r *Resolved) text(k Key) string {
	s, _ := r.values[k].(string)
	return s
}

func (r *Resolved) list(k Key) []string {
	l, _ := r.values[k].([]string)
	return l
}

func (r *Resolved) bool(k Key) bool {
	b, _ := r.values[k].(bool)
	return b
}

func (r *Resolved) pairs(k Key) map[string]string {
	out := make(map[string]string)
	for _, p := range r.list(k) {
		name, v, _ := strings.Cut(p, "=")
		out[name] = v
	}
	return out
}

// BootstrapServers are the brokers to connect to first, and where they come
// from; none if nothing names any.
func (r *Resolved) BootstrapServers() ([]string, Origin) {
	if l := r.list(BootstrapServer); len(l) > 0 {
		return l, r.origins[BootstrapServer]
	}
	if r.Properties != nil && len(r.Properties.BootstrapServers) > 0 {
		return r.Properties.BootstrapServers, r.propertyOrigin("bootstrap.servers")
	}
	return nil, Origin{}
}

func (r *Resolved) propertyOrigin(key string) Origin {
	o := Origin{Source: FromProperties, Name: key, File: r.Properties.File}
	for _, u := range r.Properties.Used {
		if u.Key == key {
			o.Line = u.Line
		}
	}
	return o
}

// ClientID is the client ID to send.
func (r *Resolved) ClientID() string {
	if r.origins[ClientID].Source == FromDefault && r.Properties != nil && r.Properties.ClientID != "" {
		return r.Properties.ClientID
	}
	return r.text(ClientID)
}

// Dialect is the dialect to assume; "" is none.
func (r *Resolved) Dialect() string { return r.text(Dialect) }

// DialectOrigin is where the dialect comes from.
func (r *Resolved) DialectOrigin() Origin { return r.origins[Dialect] }

// TimeZone is the time zone of times for people; UTC unless it is set.
func (r *Resolved) TimeZone() *time.Location {
	zone, err := ParseTimeZone(r.text(TimeZone))
	if err != nil { // it is not set: another one was refused
		return time.UTC
	}
	return zone
}

// Row is a setting that counts, as it is shown.
type Row struct {
	Key    string // also that of a properties file
	Value  string // *** for a secret
	Secret bool
	Origin Origin
}

// Rows returns all settings that count: those of kshare, in the order of
// [Settings], then the entries of the properties file that nothing has replaced,
// in the order of the file.
func (r *Resolved) Rows() []Row {
	var out []Row
	for _, s := range Settings() {
		v, set := r.values[s.Key]
		if !set {
			continue
		}
		out = append(out, Row{string(s.Key), s.show(v), s.Kind == Secret, r.origins[s.Key]})
	}
	if r.Properties == nil {
		return out
	}
	for _, u := range r.Properties.Used {
		if r.replaces(u.Key) {
			continue
		}
		row := Row{u.Key, u.Value, u.Secret, r.propertyOrigin(u.Key)}
		if u.Secret {
			row.Value = auth.Secret("").String()
		}
		out = append(out, row)
	}
	if r.Properties.ClientID != "" && r.origins[ClientID].Source == FromDefault {
		out = slices.DeleteFunc(out, func(row Row) bool { return row.Key == string(ClientID) })
	}
	return out
}

// show is a value without secrets. Arguments of a command may be some.
func (s Setting) show(v value) string {
	switch v := v.(type) {
	case bool:
		return fmt.Sprint(v)
	case []string:
		if s.Kind == Command && len(v) > 1 {
			return v[0] + " " + auth.Secret("").String()
		}
		return strings.Join(v, ",")
	case string:
		switch s.Kind {
		case Secret:
			return auth.Secret(v).String()
		case URL:
			return auth.RedactURL(v)
		case Text, Bool, File, List, Pairs, Zone, Command:
		}
		return v
	}
	return ""
}

// replaces reports whether a setting takes the place of an entry of a properties
// file.
func (r *Resolved) replaces(key string) bool {
	for k, prefixes := range map[Key][]string{
		BootstrapServer: {"bootstrap.servers"},
		ClientID:        {"client.id"},
		TLSCA:           {"ssl.truststore."},
		TLSCert:         {"ssl.keystore.", "ssl.key.password"},
		TLSServerName:   {"ssl.endpoint.identification.algorithm"},
		TLSSkipVerify:   {"ssl.endpoint.identification.algorithm"},
	} {
		if o, set := r.origins[k]; !set || o.Source == FromDefault {
			continue
		}
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			return true
		}
	}
	return key == "security.protocol" && r.wantsTLS() != nil && r.text(SASLMechanism) != ""
}

// Values are the settings of a context as they are shown, by key.
func (x ContextValues) Values() map[Key]string {
	out := make(map[Key]string)
	for _, k := range slices.Sorted(maps.Keys(x.values)) {
		s, _ := Find(k)
		out[k] = s.show(x.values[k])
	}
	return out
}
