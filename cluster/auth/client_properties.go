package auth

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ClientProperties is what the client.properties of Kafka's Java tools comes to.
type ClientProperties struct {
	File             string // "" when it was not read from a file
	BootstrapServers []string
	ClientID         string
	// DialTimeout is socket.connection.setup.timeout.ms; 0 when it is not set.
	DialTimeout time.Duration
	Options     Options

	// Used are the entries that the above was made of, in the order of the file.
	Used []UsedProperty
	// NotUsed are all others, in the order of the file.
	NotUsed []UnusedProperty
	// NotASCII are the keys of the used entries that Java may read as other
	// characters than were meant; see [Property].
	NotASCII []string
}

// UsedProperty is an entry that counts.
type UsedProperty struct {
	Key    string
	Value  string // "" for a secret
	Secret bool
	Line   int
}

// UnusedProperty is an entry that does not, and why.
type UnusedProperty struct {
	Key    string
	Line   int
	Reason string // such as "security.protocol is PLAINTEXT"
}

// name is the key, or where it is: what looks like no key may be a part of a
// value that got into a line of its own.
func (u UnusedProperty) name() string {
	if regexp.MustCompile(`^[A-Za-z0-9._-]+$`).MatchString(u.Key) {
		return u.Key
	}
	return fmt.Sprintf("line %d", u.Line)
}

// Override is what takes the place of entries. The zero value changes nothing.
type Override struct {
	TLS       *bool  // of the half of security.protocol that is SSL
	Mechanism string // of sasl.mechanism, and turns SASL on
}

// LoadClientProperties reads a client.properties, with a part of it replaced. It may
// return *ConfigError.
func LoadClientProperties(file string, o Override) (*ClientProperties, error) {
	props, err := readProperties(file)
	if err != nil {
		return nil, err
	}
	c, err := NewClientProperties(props, o)
	if err != nil {
		return nil, inFile(err, file)
	}
	c.File = file
	return c, nil
}

// NewClientProperties makes sense of entries. It opens no file. It may return
// *ConfigError.
func NewClientProperties(props []Property, o Override) (*ClientProperties, error) {
	r := &propertyReader{used: make(map[string]bool), reasons: make(map[string]string)}
	for _, p := range props {
		p.Value = strings.TrimFunc(p.Value, func(c rune) bool { return c <= ' ' }) // as ConfigDef does
		r.props = append(r.props, p)
	}
	c := &ClientProperties{}
	if err := r.read(c, o); err != nil {
		if err.Key != "" && err.Line == 0 {
			err.Line = r.line(err.Key)
		}
		return nil, err
	}
	for _, p := range r.props {
		switch {
		case !r.used[p.Key]:
			c.NotUsed = append(c.NotUsed, UnusedProperty{p.Key, p.Line, r.reason(p.Key)})
			continue
		case p.NotASCII:
			c.NotASCII = append(c.NotASCII, p.Key)
		}
		u := UsedProperty{Key: p.Key, Value: p.Value, Secret: isSecretKey(p.Key), Line: p.Line}
		switch {
		case u.Secret:
			u.Value = ""
		case strings.HasSuffix(u.Key, ".url"):
			u.Value = RedactURL(u.Value)
		}
		c.Used = append(c.Used, u)
	}
	return c, nil
}

// Warnings are sentences about what may not be as it was meant: at most one
// about entries that are not used, and one about characters.
func (c *ClientProperties) Warnings() []string {
	file := "properties"
	if c.File != "" {
		file = filepath.Base(c.File)
	}
	var out []string
	if len(c.NotUsed) > 0 {
		out = append(out, file+": not used: "+c.notUsed())
	}
	if len(c.NotASCII) > 0 {
		out = append(out, fmt.Sprintf("%s: characters outside ASCII in %s: kshare reads them as ISO-8859-1, as Kafka's tools do; write them as \\uXXXX",
			file, strings.Join(c.NotASCII, ", ")))
	}
	return out
}

// notUsed lists the keys by reason, those that most likely are a mistake first.
func (c *ClientProperties) notUsed() string {
	var reasons []string
	keys := make(map[string][]string)
	for _, u := range c.NotUsed {
		if keys[u.Reason] == nil {
			reasons = append(reasons, u.Reason)
		}
		keys[u.Reason] = append(keys[u.Reason], u.name())
	}
	slices.SortStableFunc(reasons, func(a, b string) int {
		return cmp.Compare(slices.Index(lastReasons(), a), slices.Index(lastReasons(), b))
	})
	parts := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		parts = append(parts, strings.Join(keys[reason], ", ")+" ("+reason+")")
	}
	return strings.Join(parts, "; ")
}

// isSecretKey holds for the keys that Kafka has as passwords. PEM is among them: a
// key may stand in it by mistake.
func isSecretKey(key string) bool {
	return key == jaasKey || key == "ssl.keystore.key" || key == "ssl.keystore.certificate.chain" || key == "ssl.truststore.certificates" || strings.HasSuffix(key, "password") ||
		strings.HasSuffix(key, "passphrase") || strings.HasSuffix(key, "secret")
}

// propertyReader hands out entries and keeps which ones.
type propertyReader struct {
	props   []Property
	used    map[string]bool
	reasons map[string]string // why a key is not used, where it could be
}

// get returns the value of a key, "" when it is not set, and marks it as used.
func (r *propertyReader) get(key string) string {
	v, _ := r.lookup(key)
	return v
}

func (r *propertyReader) lookup(key string) (string, bool) {
	for _, p := range r.props {
		if p.Key == key {
			r.used[key] = true
			return p.Value, true
		}
	}
	return "", false
}

func (r *propertyReader) line(key string) int {
	for _, p := range r.props {
		if p.Key == key {
			return p.Line
		}
	}
	return 0
}

// ignore marks a key as not used.
func (r *propertyReader) ignore(key, reason string) {
	delete(r.used, key)
	r.reasons[key] = reason
}

// list returns a value with commas, as Kafka splits it.
func (r *propertyReader) list(key string) []string {
	var out []string
	for s := range strings.SplitSeq(r.get(key), ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

func (r *propertyReader) millis(key string) (time.Duration, *ConfigError) {
	s := r.get(key)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, keyError(key, "want a number of milliseconds")
	}
	return time.Duration(n) * time.Millisecond, nil
}

func (r *propertyReader) bool(key string) (bool, *ConfigError) {
	switch strings.ToLower(r.get(key)) {
	case "true":
		return true, nil
	case "false", "":
		return false, nil
	}
	return false, keyError(key, "want true or false")
}

func (r *propertyReader) read(c *ClientProperties, o Override) *ConfigError {
	if err := r.checkProviders(); err != nil {
		return err
	}
	c.BootstrapServers = r.list("bootstrap.servers")
	c.ClientID = r.get("client.id")
	var err *ConfigError
	if c.DialTimeout, err = r.millis("socket.connection.setup.timeout.ms"); err != nil {
		return err
	}
	useTLS, useSASL, err := r.protocol(o)
	if err != nil {
		return err
	}
	if useTLS {
		if c.Options.TLS, err = r.tls(); err != nil {
			return err
		}
	}
	if useSASL {
		if c.Options.SASL, err = r.sasl(o.Mechanism); err != nil {
			return err
		}
	}
	r.reasons["bootstrap.controllers"] = "kshare connects to brokers"
	for _, p := range r.props {
		switch {
		case r.used[p.Key] || r.reasons[p.Key] != "" || otherReasons()[p.Key] != "":
		case !useTLS && strings.HasPrefix(p.Key, "ssl."), !useSASL && strings.HasPrefix(p.Key, "sasl."):
			r.reasons[p.Key] = "security.protocol is " + c.Options.Protocol()
		case useSASL && c.Options.SASL.Name != MechanismOAuthBearer && strings.HasPrefix(p.Key, "sasl.oauthbearer."),
			useSASL && c.Options.SASL.Name != MechanismGSSAPI && strings.HasPrefix(p.Key, "sasl.kerberos."):
			r.reasons[p.Key] = "sasl.mechanism is " + c.Options.SASL.Name
		}
	}
	return nil
}

// checkProviders refuses variables: what stands for them is not known.
func (r *propertyReader) checkProviders() *ConfigError {
	if r.get("config.providers") == "" {
		return nil
	}
	for _, p := range r.props {
		if strings.Contains(p.Value, "${") && !strings.HasPrefix(p.Key, "config.providers") {
			return keyError(p.Key, "has a variable of a config provider, which is not supported").
				advise("write the value, or set it by sasl_password_file or sasl_password_command")
		}
	}
	r.ignore("config.providers", reasonJava)
	return nil
}

func (r *propertyReader) protocol(o Override) (useTLS, useSASL bool, err *ConfigError) {
	const key = "security.protocol"
	switch strings.ToUpper(r.get(key)) {
	case "", "PLAINTEXT":
	case "SSL":
		useTLS = true
	case "SASL_PLAINTEXT":
		useSASL = true
	case "SASL_SSL":
		useTLS, useSASL = true, true
	default:
		return false, false, keyError(key, "want PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
	}
	if o.TLS != nil {
		useTLS = *o.TLS
	}
	return useTLS, useSASL || o.Mechanism != "", nil
}

func (r *propertyReader) tls() (*TLS, *ConfigError) {
	t := &TLS{}
	var err *ConfigError
	if t.Trust.Type, err = r.storeType("ssl.truststore.type"); err != nil {
		return nil, err
	}
	if t.Key.Type, err = r.storeType("ssl.keystore.type"); err != nil {
		return nil, err
	}
	t.Trust.File, t.Trust.PEM = r.get("ssl.truststore.location"), r.get("ssl.truststore.certificates")
	t.Trust.Password = Secret(r.get("ssl.truststore.password"))
	t.Key.File = r.get("ssl.keystore.location")
	t.Key.Password, t.Key.KeyPassword = Secret(r.get("ssl.keystore.password")), Secret(r.get("ssl.key.password"))
	t.Key.CertificatePEM, t.Key.KeyPEM = r.get("ssl.keystore.certificate.chain"), Secret(r.get("ssl.keystore.key"))
	switch {
	case t.Trust.PEM != "" && t.Trust.File != "":
		return nil, keyError("ssl.truststore.certificates", "ssl.truststore.location is set too")
	case t.Key.KeyPEM != "" && t.Key.File != "":
		return nil, keyError("ssl.keystore.key", "ssl.keystore.location is set too")
	case t.Key.KeyPEM != "" && t.Key.CertificatePEM == "":
		return nil, keyError("ssl.keystore.key", "ssl.keystore.certificate.chain is not set")
	case t.Key.CertificatePEM != "" && t.Key.KeyPEM == "":
		return nil, keyError("ssl.keystore.certificate.chain", "ssl.keystore.key is not set")
	}
	if name, set := r.lookup("ssl.endpoint.identification.algorithm"); set {
		switch strings.ToLower(name) {
		case "":
			t.SkipHostName = true
		case "https":
		default:
			return nil, keyError("ssl.endpoint.identification.algorithm", "want https, or nothing to accept certificates of other hosts")
		}
	}
	if t.MinVersion, t.MaxVersion, err = r.versions(); err != nil {
		return nil, err
	}
	t.CipherSuites = r.cipherSuites()
	return t, nil
}

func (r *propertyReader) storeType(key string) (string, *ConfigError) {
	t := strings.ToUpper(r.get(key))
	switch t {
	case "", storePEM, storeJKS, storePKCS12:
		return t, nil
	}
	return "", keyError(key, "is not supported: want PEM, PKCS12 or JKS")
}

// versions reads ssl.enabled.protocols. That of Java are TLS 1.2 and 1.3 too.
func (r *propertyReader) versions() (lo, hi uint16, err *ConfigError) {
	const key = "ssl.enabled.protocols"
	known := map[string]uint16{"TLSv1": tls.VersionTLS10, "TLSv1.1": tls.VersionTLS11, "TLSv1.2": tls.VersionTLS12, "TLSv1.3": tls.VersionTLS13}
	names := r.list(key)
	for _, name := range names {
		v := known[name]
		if v == 0 {
			continue // SSLv3, which Java does not speak any more either
		}
		if lo == 0 || v < lo {
			lo = v
		}
		hi = max(hi, v)
	}
	if len(names) > 0 && hi == 0 {
		return 0, 0, keyError(key, "want some of TLSv1.2 and TLSv1.3")
	}
	return lo, hi, nil
}

// cipherSuites are those of TLS 1.2 that Go knows; the choice among those of TLS
// 1.3 is Go's.
func (r *propertyReader) cipherSuites() []uint16 {
	const key = "ssl.cipher.suites"
	names := r.list(key)
	var out []uint16
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if slices.Contains(names, s.Name) && slices.Contains(s.SupportedVersions, tls.VersionTLS12) {
			out = append(out, s.ID)
		}
	}
	if len(names) > 0 && out == nil {
		r.ignore(key, "none of them is a choice in Go")
	}
	return out
}

func (r *propertyReader) sasl(override string) (*SASL, *ConfigError) {
	const mechanismKey = "sasl.mechanism"
	s := &SASL{Name: cmp.Or(r.get(mechanismKey), MechanismGSSAPI)} // Kafka's default
	if override != "" && override != s.Name {
		if r.used[mechanismKey] {
			r.ignore(mechanismKey, "another mechanism is set")
		}
		if !isPasswordMechanism(s.Name) || !isPasswordMechanism(override) {
			// What the file says of the login is about the other one.
			r.ignore(jaasKey, "another mechanism is set")
			return &SASL{Name: override}, nil
		}
		s.Name = override
	}
	if err := CheckMechanism(s.Name); err != nil {
		e, _ := err.(*ConfigError) //nolint:errorlint // it is none but that
		return nil, e
	}
	text, set := r.lookup(jaasKey)
	if !set {
		if override == "" && s.Name != MechanismAWSMSKIAM {
			return nil, keyError(jaasKey, "is not set, and security.protocol asks for SASL").
				advise("Kafka's tools may get it from a file that KAFKA_OPTS names; put it into this one")
		}
		return s, r.oauthEndpoint(s, loginModule{})
	}
	m, err := parseJAAS(text)
	if err != nil {
		e, _ := err.(*ConfigError) //nolint:errorlint // it is none but that
		return nil, e
	}
	switch s.Name {
	case MechanismPlain, MechanismScramSHA256, MechanismScramSHA512:
		s.User, s.Password = m.options["username"], Secret(m.options["password"])
		s.DelegationToken = m.options["tokenauth"] == "true" && s.Name != MechanismPlain
	case MechanismOAuthBearer:
		return s, r.oauth(s, m)
	case MechanismAWSMSKIAM:
		return s, r.aws(s, m)
	case MechanismGSSAPI:
		r.kerberos(s, m)
	}
	return s, nil
}

func isPasswordMechanism(name string) bool {
	return name == MechanismPlain || name == MechanismScramSHA256 || name == MechanismScramSHA512
}

// The handlers of Kafka that get a token from an endpoint or a file. The second
// name is the one before Kafka 4.
func endpointHandlers() []string {
	return []string{
		"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
		"org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
	}
}

const (
	handlerKey   = "sasl.login.callback.handler.class"
	retrieverKey = "sasl.oauthbearer.jwt.retriever.class"
	endpointKey  = "sasl.oauthbearer.token.endpoint.url"
)

func (r *propertyReader) oauth(s *SASL, m loginModule) *ConfigError {
	handler := r.get(handlerKey)
	switch {
	case handler == "", strings.HasSuffix(handler, ".OAuthBearerUnsecuredLoginCallbackHandler"):
		return unsecuredOptions(s, m)
	case slices.Contains(endpointHandlers(), handler):
		s.OAuth.Extensions = withPrefix(m.options, "extension_")
		return r.oauthEndpoint(s, m)
	}
	return keyError(handlerKey, "is a Java class that kshare does not know").
		advise("get the token by sasl_token_command, or use %s", endpointHandlers()[0])
}

// oauthEndpoint reads what an endpoint needs; the options of the login module are
// the older place for some of it.
func (r *propertyReader) oauthEndpoint(s *SASL, m loginModule) *ConfigError {
	if s.Name != MechanismOAuthBearer {
		return nil
	}
	retriever := r.get(retrieverKey)
	simple := retriever[strings.LastIndex(retriever, ".")+1:]
	if !slices.Contains([]string{"", "DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever"}, simple) {
		return keyError(retrieverKey, "is a Java class that kshare does not know").advise("get the token by sasl_token_command")
	}
	u, err := url.Parse(r.get(endpointKey))
	if err != nil {
		return keyError(endpointKey, "is no URL")
	}
	if u.Scheme == "file" {
		s.OAuth.TokenFile = filepath.FromSlash(u.Path)
		return nil
	}
	s.OAuth.TokenURL = u.String()
	s.OAuth.ClientID = cmp.Or(r.get("sasl.oauthbearer.client.credentials.client.id"), m.options["clientId"])
	s.OAuth.ClientSecret = Secret(cmp.Or(r.get("sasl.oauthbearer.client.credentials.client.secret"), m.options["clientSecret"]))
	s.OAuth.Scope = cmp.Or(r.get("sasl.oauthbearer.scope"), m.options["scope"])
	encode, bad := r.bool("sasl.oauthbearer.header.urlencode")
	s.OAuth.RawBasic = !encode
	if bad != nil {
		return bad
	}
	connect, bad := r.millis("sasl.login.connect.timeout.ms")
	if bad != nil {
		return bad
	}
	read, bad := r.millis("sasl.login.read.timeout.ms")
	s.OAuth.Timeout = connect + read
	if bad != nil {
		return bad
	}
	s.OAuth.TLS = endpointTLS(m.options)
	return nil
}

// endpointTLS is what the options of a login module say of the endpoint's TLS.
func endpointTLS(options map[string]string) *TLS {
	t := &TLS{Trust: TrustStore{
		File: options["ssl.truststore.location"], Type: strings.ToUpper(options["ssl.truststore.type"]),
		Password: Secret(options["ssl.truststore.password"]), PEM: options["ssl.truststore.certificates"],
	}}
	if t.Trust == (TrustStore{}) {
		return nil
	}
	return t
}

// unsecuredOptions reads the options of Kafka's unsecured tokens.
func unsecuredOptions(s *SASL, m loginModule) *ConfigError {
	t := &UnsecuredToken{Claims: make(map[string]any)}
	if v := m.options["unsecuredLoginLifetimeSeconds"]; v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return keyError(jaasKey, "unsecuredLoginLifetimeSeconds is no number")
		}
		t.Lifetime = time.Duration(n) * time.Second
	}
	for name, v := range withPrefix(m.options, "unsecuredLoginStringClaim_") {
		t.Claims[name] = v
	}
	for name, v := range withPrefix(m.options, "unsecuredLoginNumberClaim_") {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return keyError(jaasKey, "unsecuredLoginNumberClaim_%s is no number", name)
		}
		t.Claims[name] = f
	}
	for name, v := range withPrefix(m.options, "unsecuredLoginListClaim_") {
		list := []string{}
		if delimiter := firstRune(v); len(v) > len(delimiter) {
			list = strings.Split(v[len(delimiter):], delimiter)
		}
		t.Claims[name] = list
	}
	if len(t.Claims) == 0 {
		return keyError(jaasKey, "has no claim of an unsecured token, such as unsecuredLoginStringClaim_sub").
			advise("for tokens of an endpoint set %s=%s", handlerKey, endpointHandlers()[0])
	}
	s.OAuth.Unsecured = t
	s.OAuth.Extensions = withPrefix(m.options, "unsecuredLoginExtension_")
	return nil
}

func firstRune(s string) string {
	for i := range s {
		if i > 0 {
			return s[:i]
		}
	}
	return s
}

// withPrefix returns the options that start with a prefix, without it.
func withPrefix(options map[string]string, prefix string) map[string]string {
	out := make(map[string]string)
	for k, v := range options {
		if name, ok := strings.CutPrefix(k, prefix); ok && name != "" {
			out[name] = v
		}
	}
	return out
}

func (r *propertyReader) aws(s *SASL, m loginModule) *ConfigError {
	for _, key := range []string{handlerKey, "sasl.client.callback.handler.class"} {
		r.get(key) // IAMClientCallbackHandler, which is built in here
	}
	s.AWS.Profile = m.options["awsProfileName"]
	for k := range m.options {
		if strings.HasPrefix(k, "awsRole") || k == "awsStsRegion" {
			return keyError(jaasKey, "option %s is not supported", k).
				advise("put role_arn into a profile of ~/.aws/config, and name that by awsProfileName")
		}
	}
	return nil
}

func (r *propertyReader) kerberos(s *SASL, m loginModule) {
	s.User = m.options["principal"]
	s.Password = Secret(m.options["password"])
	s.Kerberos.Service = cmp.Or(r.get("sasl.kerberos.service.name"), m.options["serviceName"])
	if m.options["useKeyTab"] == "true" {
		s.Kerberos.Keytab = strings.TrimPrefix(m.options["keyTab"], "file:")
	}
	if m.options["useTicketCache"] == "true" {
		s.Kerberos.TicketCache = cmp.Or(m.options["ticketCache"], defaultTicketCache())
	}
}
