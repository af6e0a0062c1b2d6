package auth

import (
	"crypto/tls"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
)

const (
	plainModule = "org.apache.kafka.common.security.plain.PlainLoginModule"
	scramModule = "org.apache.kafka.common.security.scram.ScramLoginModule"
	oauthModule = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
)

func parseClient(t *testing.T, file string, o Override) (*ClientProperties, error) {
	t.Helper()
	props, err := ParseProperties([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return NewClientProperties(props, o)
}

func TestClientProperties(t *testing.T) {
	saslSSL := "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
	login := "sasl.jaas.config=" + plainModule + " required username=\"alice\" password=\"s3cret\";\n"
	alice := &SASL{Name: "PLAIN", User: "alice", Password: "s3cret"}
	for _, c := range []struct {
		name, file string
		want       Options
	}{
		{"nothing", "", Options{}},
		{"PLAINTEXT", "security.protocol=PLAINTEXT\n", Options{}},
		{"SSL", "security.protocol=SSL\n", Options{TLS: &TLS{}}},
		{"lower case", "security.protocol=ssl\n", Options{TLS: &TLS{}}},
		{"blanks around a value", "security.protocol= \t SSL \t\n", Options{TLS: &TLS{}}},
		{"SASL_PLAINTEXT", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n" + login, Options{SASL: alice}},
		{"SASL_SSL", saslSSL + login, Options{TLS: &TLS{}, SASL: alice}},
		{"CRLF", strings.ReplaceAll(saslSSL+login, "\n", "\r\n"), Options{TLS: &TLS{}, SASL: alice}},
		{"byte order mark", "\xef\xbb\xbf" + saslSSL + login, Options{TLS: &TLS{}, SASL: alice}},
		{"no final newline", saslSSL + strings.TrimSuffix(login, "\n"), Options{TLS: &TLS{}, SASL: alice}},
		{"JAAS over lines", saslSSL + "sasl.jaas.config=" + plainModule + " required \\\n  username=\"alice\" \\\n  password=\"s3cret\";\n", Options{TLS: &TLS{}, SASL: alice}},
		{"module of SCRAM for PLAIN", saslSSL + "sasl.jaas.config=" + scramModule + " required username=\"alice\" password=\"s3cret\";\n", Options{TLS: &TLS{}, SASL: alice}},
		{
			"SCRAM", "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config=" + scramModule + " required username=\"a\" password=\"b\";",
			Options{TLS: &TLS{}, SASL: &SASL{Name: "SCRAM-SHA-512", User: "a", Password: "b"}},
		},
		{
			"delegation token", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=" + scramModule + " required username=\"a\" password=\"b\" tokenauth=\"true\";",
			Options{SASL: &SASL{Name: "SCRAM-SHA-256", User: "a", Password: "b", DelegationToken: true}},
		},
		{
			"password of every kind of character", saslSSL + `sasl.jaas.config=` + plainModule + ` required username="alice" password="a\\"b\\\\c;d=e f$g${h}#i!j\u00e4\u20ac'k";`,
			Options{TLS: &TLS{}, SASL: &SASL{Name: "PLAIN", User: "alice", Password: "a\"b\\c;d=e f$g${h}#i!j\u00e4\u20ac'k"}},
		},
		{
			"stores", "security.protocol=SSL\nssl.truststore.location=/t.jks\nssl.truststore.password=tp\nssl.truststore.type=JKS\n" +
				"ssl.keystore.location=/k.p12\nssl.keystore.password=kp\nssl.keystore.type=pkcs12\nssl.key.password=p\n",
			Options{TLS: &TLS{
				Trust: TrustStore{File: "/t.jks", Type: "JKS", Password: "tp"},
				Key:   KeyStore{File: "/k.p12", Type: "PKCS12", Password: "kp", KeyPassword: "p"},
			}},
		},
		{
			"PEM in the file", "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.certificates=CA\nssl.keystore.type=PEM\nssl.keystore.certificate.chain=CERT\nssl.keystore.key=KEY\n",
			Options{TLS: &TLS{
				Trust: TrustStore{Type: "PEM", PEM: "CA"},
				Key:   KeyStore{Type: "PEM", CertificatePEM: "CERT", KeyPEM: "KEY"},
			}},
		},
		{"host names are not looked at", "security.protocol=SSL\nssl.endpoint.identification.algorithm=\n", Options{TLS: &TLS{SkipHostName: true}}},
		{"host names are", "security.protocol=SSL\nssl.endpoint.identification.algorithm=HTTPS\n", Options{TLS: &TLS{}}},
		{"one protocol", "security.protocol=SSL\nssl.enabled.protocols=TLSv1.3\n", Options{TLS: &TLS{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13}}},
		{"protocols", "security.protocol=SSL\nssl.enabled.protocols=TLSv1.2, TLSv1.3\n", Options{TLS: &TLS{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13}}},
		{
			"cipher suites", "security.protocol=SSL\nssl.cipher.suites=TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\n",
			Options{TLS: &TLS{CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}},
		},
		{
			"unsecured token", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config=" + oauthModule +
				" required unsecuredLoginStringClaim_sub=\"alice\" unsecuredLoginNumberClaim_n=\"1.5\" unsecuredLoginListClaim_scope=\"|a|b\" unsecuredLoginLifetimeSeconds=\"60\" unsecuredLoginExtension_trace=\"1\";",
			Options{SASL: &SASL{Name: "OAUTHBEARER", OAuth: OAuth{
				Unsecured:  &UnsecuredToken{Claims: map[string]any{"sub": "alice", "n": 1.5, "scope": []string{"a", "b"}}, Lifetime: time.Minute},
				Extensions: map[string]string{"trace": "1"},
			}}},
		},
		{
			"token endpoint", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://idp/token\n" +
				"sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n" +
				"sasl.login.connect.timeout.ms=1000\nsasl.login.read.timeout.ms=2000\nsasl.jaas.config=" + oauthModule + " required clientId=\"id\" clientSecret=\"s\" scope=\"a b\" extension_pool=\"p\";",
			Options{SASL: &SASL{Name: "OAUTHBEARER", OAuth: OAuth{
				TokenURL: "https://idp/token", ClientID: "id", ClientSecret: "s", Scope: "a b", RawBasic: true, Timeout: 3 * time.Second,
				Extensions: map[string]string{"pool": "p"},
			}}},
		},
		{
			"token endpoint, by settings of their own", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=https://idp/token\n" +
				"sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler\n" +
				"sasl.oauthbearer.client.credentials.client.id=id\nsasl.oauthbearer.client.credentials.client.secret=s\nsasl.oauthbearer.scope=x\nsasl.oauthbearer.header.urlencode=true\n" +
				"sasl.jaas.config=" + oauthModule + " required ssl.truststore.location=\"/ca.pem\" ssl.truststore.type=\"PEM\";",
			Options{SASL: &SASL{Name: "OAUTHBEARER", OAuth: OAuth{
				TokenURL: "https://idp/token", ClientID: "id", ClientSecret: "s", Scope: "x",
				TLS: &TLS{Trust: TrustStore{File: "/ca.pem", Type: "PEM"}}, Extensions: map[string]string{},
			}}},
		},
		{
			"token file", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file:///run/token\n" +
				"sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\nsasl.jaas.config=" + oauthModule + " required;",
			Options{SASL: &SASL{Name: "OAUTHBEARER", OAuth: OAuth{TokenFile: "/run/token", Extensions: map[string]string{}}}},
		},
		{
			"MSK", "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\nsasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName=\"prod\";\n" +
				"sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n",
			Options{TLS: &TLS{}, SASL: &SASL{Name: "AWS_MSK_IAM", AWS: AWS{Profile: "prod"}}},
		},
		{
			"Kerberos is the default", "security.protocol=SASL_PLAINTEXT\nsasl.kerberos.service.name=kafka\nsasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab=\"/a.keytab\" principal=\"a@R\";",
			Options{SASL: &SASL{Name: "GSSAPI", User: "a@R", Kerberos: Kerberos{Service: "kafka", Keytab: "/a.keytab"}}},
		},
		{
			"Kerberos tickets", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true ticketCache=\"/cc\" serviceName=\"k\";",
			Options{SASL: &SASL{Name: "GSSAPI", Kerberos: Kerberos{Service: "k", TicketCache: "/cc"}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseClient(t, c.file, Override{})
			if err != nil || !reflect.DeepEqual(got.Options, c.want) || len(got.NotUsed) > 0 {
				t.Fatalf("NewClientProperties = %+v, %v, not used %v, want %+v", got.Options, err, got.NotUsed, c.want)
			}
		})
	}
}

func TestClientPropertiesOfTheConnection(t *testing.T) {
	got, err := parseClient(t, "bootstrap.servers = a:1 , b:2,\nclient.id=x\nsocket.connection.setup.timeout.ms=1500\n", Override{})
	if err != nil || !slices.Equal(got.BootstrapServers, []string{"a:1", "b:2"}) || got.ClientID != "x" || got.DialTimeout != 1500*time.Millisecond {
		t.Errorf("NewClientProperties = %+v, %v", got, err)
	}
}

func TestClientPropertiesOverride(t *testing.T) {
	for _, c := range []struct {
		file string
		o    Override
		want string
	}{
		{"", Override{TLS: new(true)}, "SSL"},
		{"security.protocol=SSL", Override{TLS: new(false)}, "PLAINTEXT"},
		{"", Override{Mechanism: "PLAIN"}, "SASL_PLAINTEXT"},
		{"security.protocol=SSL", Override{Mechanism: "PLAIN"}, "SASL_SSL"},
		{"security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", Override{Mechanism: "SCRAM-SHA-256", TLS: new(false)}, "SASL_PLAINTEXT"},
	} {
		got, err := parseClient(t, c.file, c.o)
		if err != nil || got.Options.Protocol() != c.want || got.Options.SASL != nil && got.Options.SASL.Name != c.o.Mechanism {
			t.Errorf("%q with %+v = %+v, %v, want %s", c.file, c.o, got, err, c.want)
		}
	}
}

func TestClientPropertiesRefused(t *testing.T) {
	oauth := "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
	for _, c := range []struct{ name, file, want string }{
		{"protocol", "security.protocol=TLS", ":1: security.protocol: want PLAINTEXT, SSL,"},
		{"mechanism", "security.protocol=SASL_SSL\nsasl.mechanism=NTLM\n", `:2: sasl.mechanism: "NTLM" is not supported: want one of PLAIN,`},
		{"no JAAS", "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", "sasl.jaas.config: is not set"},
		{"JAAS", "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=M required x=\n", ":3: sasl.jaas.config: option 1 has no value"},
		{"store type", "security.protocol=SSL\nssl.keystore.type=BCFKS\n", ":2: ssl.keystore.type: is not supported: want PEM, PKCS12 or JKS"},
		{"key without certificate", "security.protocol=SSL\nssl.keystore.key=K\n", ":2: ssl.keystore.key: ssl.keystore.certificate.chain is not set"},
		{"certificate without key", "security.protocol=SSL\nssl.keystore.certificate.chain=C\n", ":2: ssl.keystore.certificate.chain: ssl.keystore.key is not set"},
		{"two keys", "security.protocol=SSL\nssl.keystore.certificate.chain=C\nssl.keystore.key=K\nssl.keystore.location=/x\n", ":3: ssl.keystore.key: ssl.keystore.location is set too"},
		{"two CAs", "security.protocol=SSL\nssl.truststore.certificates=C\nssl.truststore.location=/x\n", "ssl.truststore.location is set too"},
		{"host names", "security.protocol=SSL\nssl.endpoint.identification.algorithm=LDAPS\n", "want https, or nothing"},
		{"TLS versions", "security.protocol=SSL\nssl.enabled.protocols=SSLv3\n", "want some of TLSv1.2 and TLSv1.3"},
		{"number", "socket.connection.setup.timeout.ms=1s\n", ":1: socket.connection.setup.timeout.ms: want a number of milliseconds"},
		{"variable", "config.providers=env\nconfig.providers.env.class=x\nbootstrap.servers=${env:B}\n", ":3: bootstrap.servers: has a variable"},
		{"handler", oauth + "sasl.login.callback.handler.class=com.example.H\nsasl.jaas.config=M required;\n", ":3: sasl.login.callback.handler.class: is a Java class"},
		{"retriever", oauth + "sasl.oauthbearer.jwt.retriever.class=com.example.R\nsasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\nsasl.jaas.config=M required;\n", "sasl.oauthbearer.jwt.retriever.class: is a Java class"},
		{"no claim", oauth + "sasl.jaas.config=M required;\n", "no claim of an unsecured token"},
		{"claim", oauth + "sasl.jaas.config=M required unsecuredLoginNumberClaim_n=x;\n", "unsecuredLoginNumberClaim_n is no number"},
		{"role of AWS", "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\nsasl.jaas.config=M required awsRoleArn=x;\n", "option awsRoleArn is not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseClient(t, c.file, Override{})
			e, ok := errors.AsType[*ConfigError](err)
			if !ok || !strings.Contains(e.Error(), c.want) {
				t.Errorf("NewClientProperties(%q) = %v, want %q", c.file, err, c.want)
			}
		})
	}
}

// Every key is used or named, in one warning, the likely mistakes first.
func TestNotUsed(t *testing.T) {
	got, err := parseClient(t, `
acks=all
sasl.mechanism=PLAIN
sasl.jaas.config=secret
ssl.truststore.location=/x
scurity.protocol=SSL
group.id=g
retries=3
ssl.protocol=TLSv1.2
bootstrap.servers=a:1
`, Override{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"properties: not used: sasl.mechanism, sasl.jaas.config, ssl.truststore.location (security.protocol is PLAINTEXT); " +
		"scurity.protocol (no such setting is known); ssl.protocol (is about Java); retries (kshare has values of its own); " +
		"acks, group.id (is for Java producers and consumers)"}
	if w := got.Warnings(); !slices.Equal(w, want) {
		t.Errorf("Warnings = %q, want %q", w, want)
	}
	if len(got.Used) != 1 || got.Used[0].Key != "bootstrap.servers" || got.Used[0].Line != 10 {
		t.Errorf("Used = %+v, want bootstrap.servers in line 10", got.Used)
	}
}

// A backslash is missing, and a part of a password has become a key.
func TestNotUsedHasNoValues(t *testing.T) {
	got, err := parseClient(t, "# x\nclient.id=x\nhunter2\"; x\n", Override{})
	if w := got.Warnings(); err != nil || len(w) != 1 || w[0] != "properties: not used: line 3 (no such setting is known)" {
		t.Errorf("Warnings = %q, %v", w, err)
	}
}

func TestNotASCII(t *testing.T) {
	got, err := parseClient(t, "client.id=\xc3\xa4\nbootstrap.servers=a:1\n", Override{})
	if err != nil || len(got.Warnings()) != 1 || !strings.Contains(got.Warnings()[0], "characters outside ASCII in client.id") {
		t.Errorf("Warnings = %q, %v, want one about client.id", got.Warnings(), err)
	}
}

// Passwords are not among what is shown of a file.
func TestUsedHasNoSecrets(t *testing.T) {
	got, err := parseClient(t, "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=M required username=\"u\" password=\"hunter2\";\n"+
		"ssl.truststore.password=hunter2\nssl.keystore.password=hunter2\nssl.key.password=hunter2\nssl.keystore.certificate.chain=C\nssl.keystore.key=hunter2\n", Override{})
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]bool{}
	for _, u := range got.Used {
		if strings.Contains(u.Value, "hunter2") {
			t.Errorf("%s is shown", u.Key)
		}
		if u.Secret {
			secrets[u.Key] = true
		}
	}
	want := []string{"sasl.jaas.config", "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password"}
	if s := slices.Sorted(maps.Keys(secrets)); !slices.Equal(s, want) {
		t.Errorf("secrets are %q, want %q", s, want)
	}
}

// Every setting of Kafka's clients is used, or it is known why not.
func TestKafkasSettingsAreKnown(t *testing.T) {
	kafkatest.Need(t)
	out := kafkatest.RunJava(t, kafkatest.Kafka44, `
import java.util.*;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;

public class Main {
    public static void main(String[] args) {
        Set<String> names = new TreeSet<>(AdminClientConfig.configNames());
        names.addAll(ProducerConfig.configNames());
        names.addAll(ConsumerConfig.configNames());
        names.forEach(System.out::println);
    }
}
`, nil)
	names := strings.Fields(string(out))
	if len(names) < 100 {
		t.Fatalf("Kafka has only %q", names)
	}
	for _, protocol := range []string{"PLAINTEXT", "SASL_SSL"} {
		for _, name := range names {
			if name == "config.providers" || strings.HasPrefix(name, "internal.") {
				continue
			}
			props := []Property{
				{Key: "security.protocol", Value: protocol},
				{Key: "sasl.mechanism", Value: "PLAIN"},
				{Key: jaasKey, Value: plainModule + ` required username="u" password="p";`},
			}
			props = slices.DeleteFunc(props, func(p Property) bool { return p.Key == name })
			got, err := NewClientProperties(append(props, Property{Key: name, Value: sampleValue(name)}), Override{})
			if err != nil {
				if !strings.Contains(err.Error(), "is not set") { // what it needs beside it
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if i := slices.IndexFunc(got.NotUsed, func(u UnusedProperty) bool { return u.Key == name }); i >= 0 && got.NotUsed[i].Reason == reasonUnknown {
				t.Errorf("%s is not known", name)
			}
		}
	}
}

// sampleValue is one that is right for a setting.
func sampleValue(name string) string {
	switch {
	case strings.HasSuffix(name, ".ms"):
		return "1"
	case strings.HasSuffix(name, ".type") && strings.HasPrefix(name, "ssl."):
		return "JKS"
	case name == "ssl.endpoint.identification.algorithm":
		return "https"
	case name == "ssl.enabled.protocols":
		return "TLSv1.3"
	case name == "security.protocol":
		return "PLAINTEXT"
	case name == "sasl.mechanism":
		return "PLAIN"
	case name == jaasKey:
		return plainModule + ` required username="u" password="p";`
	}
	return "x"
}
