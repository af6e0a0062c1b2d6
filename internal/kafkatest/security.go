package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// User is a user of a cluster with [SASLSSL].
type User struct{ Name, Password string }

// The users of every secured cluster.
var (
	// Admin is a super user: an authorizer allows it everything.
	Admin = User{"admin", "admin-secret"}
	// Alice may do what ACLs allow User:alice.
	Alice = User{"alice", "alice-secret"}
)

// interBroker is the user that brokers and controllers are to each other.
var interBroker = User{"broker", "broker-secret"}

// Mechanism is a SASL mechanism by its name in Kafka's sasl.mechanism.
type Mechanism string

// The mechanisms that a cluster with [SASLSSL] takes.
const (
	Plain       Mechanism = "PLAIN"
	ScramSHA256 Mechanism = "SCRAM-SHA-256"
	ScramSHA512 Mechanism = "SCRAM-SHA-512"
	// OAuthBearer takes any unsecured token: who it says it is of has logged in.
	OAuthBearer Mechanism = "OAUTHBEARER"
)

// security is what a cluster with [SASLSSL] has on disk.
type security struct {
	caFile     string // certificate of the CA, PEM
	serverFile string // key and certificate of all brokers, PEM
	roots      *x509.CertPool
	dir        string
	ca         *x509.Certificate
	caKey      *ecdsa.PrivateKey
}

// properties returns the broker configs of security.
func (s *security) properties(cfg Config) map[string]any {
	props := map[string]any{
		"listener.name.client.ssl.keystore.type":              "PEM",
		"listener.name.client.ssl.keystore.location":          s.serverFile,
		"listener.name.client.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.client.plain.sasl.jaas.config":         plainLogin(nil, Admin, Alice),
		"listener.name.client.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.client.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.client.oauthbearer.sasl.jaas.config":   "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",

		"listener.name.mutual.ssl.keystore.type":       "PEM",
		"listener.name.mutual.ssl.keystore.location":   s.serverFile,
		"listener.name.mutual.ssl.truststore.type":     "PEM",
		"listener.name.mutual.ssl.truststore.location": s.caFile,
		"listener.name.mutual.ssl.client.auth":         "required",
	}
	if cfg.Authorizer {
		login := plainLogin(&interBroker, interBroker, Admin, Alice)
		props["sasl.mechanism.inter.broker.protocol"] = Plain
		props["sasl.mechanism.controller.protocol"] = Plain
		for _, listener := range []string{"internal", "controller"} {
			props["listener.name."+listener+".sasl.enabled.mechanisms"] = Plain
			props["listener.name."+listener+".plain.sasl.jaas.config"] = login
		}
		props["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
		props["super.users"] = fmt.Sprintf("User:%s;User:%s", interBroker.Name, Admin.Name)
	}
	return props
}

// plainLogin is a JAAS configuration of PLAIN that logs in as self, if not nil,
// and lets users log in.
func plainLogin(self *User, users ...User) string {
	var b strings.Builder
	b.WriteString("org.apache.kafka.common.security.plain.PlainLoginModule required")
	if self != nil {
		fmt.Fprintf(&b, " username=%q password=%q", self.Name, self.Password)
	}
	for _, u := range users {
		fmt.Fprintf(&b, " user_%s=%q", u.Name, u.Password)
	}
	return b.String() + ";"
}

// scramArgs are the arguments of StorageTool that add the users' credentials.
func (s *security) scramArgs() []string {
	var args []string
	for _, u := range []User{Admin, Alice} {
		for _, m := range []Mechanism{ScramSHA256, ScramSHA512} {
			args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", m, u.Name, u.Password))
		}
	}
	return args
}

// newSecurity makes a CA and the brokers' certificate in dir.
func newSecurity(dir string) (*security, error) {
	s := &security{
		dir: dir, caFile: filepath.Join(dir, "ca.pem"), serverFile: filepath.Join(dir, "server.pem"),
		roots: x509.NewCertPool(),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafkatest CA"},
		NotBefore: validFrom, NotAfter: validTo,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: validFrom, NotAfter: validTo,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if s.ca, err = x509.ParseCertificate(caDER); err != nil {
		return nil, err
	}
	s.caKey = caKey
	caPEM := block("CERTIFICATE", caDER)
	s.roots.AppendCertsFromPEM(caPEM)
	if err := os.WriteFile(s.caFile, caPEM, 0o600); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.serverFile, append(block("PRIVATE KEY", keyDER), block("CERTIFICATE", serverDER)...), 0o600)
}

// The certificates are thrown away with the test, whatever its clock says.
var (
	validFrom = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	validTo   = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// CAFile is the file with the certificate of the CA that signed the brokers',
// in PEM; "" for a cluster without TLS.
func (c *Cluster) CAFile() string {
	if c.sec == nil {
		return ""
	}
	return c.sec.caFile
}

// SignClient signs the request for a certificate in PEM, such as keytool -certreq
// writes, and returns the certificate and that of the CA. Brokers take it at
// [Cluster.BootstrapMutualTLS].
func (c *Cluster) SignClient(tb testing.TB, request []byte) []byte {
	tb.Helper()
	b, _ := pem.Decode(request)
	if b == nil || c.sec == nil {
		tb.Fatal("kafkatest: no request for a certificate, or no CA")
	}
	r, err := x509.ParseCertificateRequest(b.Bytes)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: r.Subject,
		NotBefore: validFrom, NotAfter: validTo,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.sec.ca, r.PublicKey, c.sec.caKey)
	if err != nil {
		tb.Fatal(err)
	}
	return append(block("CERTIFICATE", der), block("CERTIFICATE", c.sec.ca.Raw)...)
}

// TLS returns a configuration that trusts the brokers; nil without TLS.
func (c *Cluster) TLS() *tls.Config {
	if c.sec == nil {
		return nil
	}
	return &tls.Config{RootCAs: c.sec.roots, MinVersion: tls.VersionTLS12}
}

// Mechanism returns u's login by m, for kgo and for package cluster.
func (u User) Mechanism(m Mechanism) sasl.Mechanism {
	auth := scram.Auth{User: u.Name, Pass: u.Password}
	switch m {
	case ScramSHA256:
		return auth.AsSha256Mechanism()
	case ScramSHA512:
		return auth.AsSha512Mechanism()
	case OAuthBearer:
		return oauth.Auth{Token: u.token()}.AsMechanism()
	default:
		return plain.Auth{User: u.Name, Pass: u.Password}.AsMechanism()
	}
}

// token is an unsecured token of u's, good for a day.
func (u User) token() string {
	now := time.Now() //nolint:forbidigo // Kafka's clock is the real one
	claims := fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, u.Name, now.Unix(), now.Add(24*time.Hour).Unix())
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + "."
}

// Opts are the options of a kgo client that connects as u by m. A cluster
// without security has no users: there both are ignored.
func (c *Cluster) Opts(u User, m Mechanism) []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap()...)}
	if c.sec != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS()), kgo.SASL(u.Mechanism(m)))
	}
	return opts
}

// CommandConfig writes a client.properties for u and m, the file that Kafka's
// tools and kshare take as --command-config, and returns its path. It is empty
// for a cluster without security.
func (c *Cluster) CommandConfig(tb testing.TB, u User, m Mechanism) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "client.properties")
	if err := c.writeCommandConfig(file, u, m); err != nil {
		tb.Fatal(err)
	}
	return file
}

func (c *Cluster) writeCommandConfig(file string, u User, m Mechanism) error {
	var b strings.Builder
	if c.sec != nil {
		login, options := "org.apache.kafka.common.security.scram.ScramLoginModule", fmt.Sprintf("username=%q password=%q", u.Name, u.Password)
		switch m {
		case Plain:
			login = "org.apache.kafka.common.security.plain.PlainLoginModule"
		case OAuthBearer:
			login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
			options = fmt.Sprintf("unsecuredLoginStringClaim_sub=%q", u.Name)
		case ScramSHA256, ScramSHA512:
		}
		fmt.Fprintf(&b, "security.protocol=SASL_SSL\nsasl.mechanism=%s\n", m)
		// A backslash of JAAS is an escape of the file too.
		fmt.Fprintf(&b, "sasl.jaas.config=%s required %s;\n", login, strings.ReplaceAll(options, `\`, `\\`))
		fmt.Fprintf(&b, "ssl.truststore.type=PEM\nssl.truststore.location=%s\n", filepath.ToSlash(c.sec.caFile))
	}
	return os.WriteFile(file, []byte(b.String()), 0o600)
}
