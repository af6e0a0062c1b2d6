package commands_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/kafkatest"
)

// canary is a secret that must be nowhere.
const canary = "c4n4ry-s3cr3t"

// clientStores are the stores of a client of the cluster, made by keytool: its
// key with a certificate of the cluster's CA, and that CA. Names are without the
// directory.
type clientStores struct {
	dir                   string
	password, keyPassword string
}

func newClientStores(t *testing.T, k *kafkatest.Cluster) clientStores {
	t.Helper()
	s := clientStores{dir: t.TempDir(), password: "st0re pass", keyPassword: "k3y=pass"}
	for _, kind := range []string{"JKS", "PKCS12"} {
		store, keyPass := "key."+strings.ToLower(kind), s.keyPassword
		if kind == "PKCS12" {
			keyPass = s.password // it has one password
		}
		tool := func(args ...string) {
			kafkatest.Keytool(t, s.dir, append(args, "-alias", "client", "-storetype", kind, "-keystore", store, "-storepass", s.password)...)
		}
		tool("-genkeypair", "-keyalg", "RSA", "-dname", "CN=kshare", "-keypass", keyPass)
		tool("-certreq", "-keypass", keyPass, "-file", "request.pem")
		request, err := os.ReadFile(filepath.Join(s.dir, "request.pem"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, "chain.pem"), k.SignClient(t, request), 0o600); err != nil {
			t.Fatal(err)
		}
		tool("-importcert", "-noprompt", "-trustcacerts", "-keypass", keyPass, "-file", "chain.pem")
		kafkatest.Keytool(t, s.dir, "-importcert", "-noprompt", "-alias", "ca", "-file", k.CAFile(),
			"-storetype", kind, "-keystore", "trust."+strings.ToLower(kind), "-storepass", s.password)
	}
	return s
}

// properties are those of SSL with the stores of a kind.
func (s clientStores) properties(kind string) string {
	text := fmt.Sprintf("security.protocol=SSL\nssl.truststore.type=%s\nssl.truststore.location=%s\nssl.truststore.password=%s\nssl.keystore.type=%[1]s\nssl.keystore.location=%[4]s\nssl.keystore.password=%[3]s\n",
		kind, filepath.ToSlash(filepath.Join(s.dir, "trust."+strings.ToLower(kind))), s.password, filepath.ToSlash(filepath.Join(s.dir, "key."+strings.ToLower(kind))))
	if kind == "JKS" {
		text += "ssl.key.password=" + s.keyPassword + "\n"
	}
	return text
}

// pemProperties has everything in the file itself, the key encrypted in the one
// way that each Java can read, and long values over several lines.
func (s clientStores) pemProperties(t *testing.T, k *kafkatest.Cluster) string {
	t.Helper()
	const source = `
import java.io.File;
import java.security.*;
import java.security.cert.Certificate;
import java.util.Base64;
import javax.crypto.*;
import javax.crypto.spec.*;

public class Main {
    static void pem(String kind, byte[] der) {
        System.out.println("-----BEGIN " + kind + "-----\n" + Base64.getMimeEncoder(64, "\n".getBytes()).encodeToString(der) + "\n-----END " + kind + "-----");
    }
    public static void main(String[] args) throws Exception {
        KeyStore ks = KeyStore.getInstance(new File(args[0]), args[1].toCharArray());
        if (args[2].equals("chain")) {
            for (Certificate c : ks.getCertificateChain("client")) pem("CERTIFICATE", c.getEncoded());
            return;
        }
        byte[] plain = ks.getKey("client", args[1].toCharArray()).getEncoded();
        SecretKey key = SecretKeyFactory.getInstance("PBEWithSHA1AndDESede").generateSecret(new PBEKeySpec(args[3].toCharArray()));
        Cipher cipher = Cipher.getInstance("PBEWithSHA1AndDESede");
        cipher.init(Cipher.ENCRYPT_MODE, key, new PBEParameterSpec("saltsalt".getBytes(), 2048));
        pem("ENCRYPTED PRIVATE KEY", new EncryptedPrivateKeyInfo(cipher.getParameters(), cipher.doFinal(plain)).getEncoded());
    }
}
`
	run := func(args ...string) string {
		t.Helper()
		args = append([]string{filepath.Join(s.dir, "key.pkcs12"), s.password}, args...)
		return string(kafkatest.RunJava(t, kafkatest.Kafka44, source, nil, args...))
	}
	ca, err := os.ReadFile(k.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	// Of several certificates in one line Kafka sees the last one.
	value := func(pem string) string { return strings.ReplaceAll(strings.TrimSpace(pem), "\n", "\\n\\\n    ") + "\n" }
	return "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.certificates=" + value(string(ca)) +
		"ssl.keystore.type=PEM\nssl.keystore.certificate.chain=" + value(run("chain")) +
		"ssl.keystore.key=" + value(run("key", s.keyPassword)) + "ssl.key.password=" + s.keyPassword + "\n"
}

// kshare reaches a real Kafka with the very file that Kafka's own tool takes.
func TestSameFileAsKafkasTools(t *testing.T) {
	odd := kafkatest.User{Name: "odd user", Password: "p\"a\\s;s=w o$r{d}'#!: \u00e4\u20ac"}
	k := kafkatest.Shared(t, kafkatest.Config{Security: kafkatest.SASLSSL, Props: map[string]string{
		// Kafka reads this file as ISO-8859-1 too, so what both make of the
		// characters is the same.
		"listener.name.client.plain.sasl.jaas.config": fmt.Sprintf(
			"org.apache.kafka.common.security.plain.PlainLoginModule required user_admin=%q user_alice=%q \"user_odd user\"=%q;",
			kafkatest.Admin.Password, kafkatest.Alice.Password, odd.Password),
	}})
	stores := newClientStores(t, k)
	read := func(u kafkatest.User, m kafkatest.Mechanism) string {
		t.Helper()
		b, err := os.ReadFile(k.CommandConfig(t, u, m))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	clients, mutual := k.Bootstrap()[0], k.BootstrapMutualTLS()[0]
	plain := read(kafkatest.Alice, kafkatest.Plain)
	for _, c := range []struct{ name, file, server string }{
		{"PLAIN", plain, clients},
		{"PLAIN, a password of every kind of character", read(odd, kafkatest.Plain), clients},
		{"PLAIN, CRLF and no final newline", strings.TrimSuffix(strings.ReplaceAll(plain, "\n", "\r\n"), "\r\n"), clients},
		{"PLAIN, other separators", strings.ReplaceAll(strings.ReplaceAll(plain, "protocol=", "protocol : "), "mechanism=", "mechanism\t"), clients},
		{"SCRAM-SHA-256", read(kafkatest.Alice, kafkatest.ScramSHA256), clients},
		{"SCRAM-SHA-512", read(kafkatest.Alice, kafkatest.ScramSHA512), clients},
		{"OAUTHBEARER", read(kafkatest.Alice, kafkatest.OAuthBearer), clients},
		{"certificate, JKS", stores.properties("JKS"), mutual},
		{"certificate, PKCS12", stores.properties("PKCS12"), mutual},
		{"certificate, stores of the other type", strings.NewReplacer("type=JKS", "type=PKCS12").Replace(stores.properties("JKS")), mutual},
		{"certificate, PEM in the file", stores.pemProperties(t, k), mutual},
		{"host names not looked at", stores.properties("PKCS12") + "ssl.endpoint.identification.algorithm=\n", mutual},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "client.properties")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := k.Java(t.Context(), kafkatest.FeatureTool, "--bootstrap-server", c.server, "--command-config", file, "describe")
			if err != nil || !strings.Contains(out, "share.version") {
				t.Fatalf("Kafka's tool: %s, %v", out, err)
			}
			res := cmdtest.Run(t, cmdtest.Setup{}, "feature", "describe", "-b", c.server, "--command-config", file, "-o", "csv").Want(t, 0)
			if !strings.Contains(res.Stdout, "share.version,1,0,2,") {
				t.Errorf("kshare: %s%s", res.Stdout, res.Stderr)
			}
			if strings.Contains(res.Stderr, "not used") {
				t.Errorf("kshare does not use all of the file: %s", res.Stderr)
			}
		})
	}
}

// What is wrong is told by the code and the hint, on a real Kafka too.
func TestWrongFileOnKafka(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Security: kafkatest.SASLSSL})
	read := func(m kafkatest.Mechanism) string {
		t.Helper()
		b, err := os.ReadFile(k.CommandConfig(t, kafkatest.Alice, m))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	right := read(kafkatest.ScramSHA512)
	clients, mutual := k.Bootstrap()[0], k.BootstrapMutualTLS()[0]
	ca := "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=" + filepath.ToSlash(k.CAFile()) + "\n"
	for _, c := range []struct {
		name, file, server string
		hint               string
	}{
		{"wrong password", strings.Replace(right, kafkatest.Alice.Password, canary, 1), clients, "check user name, password and sasl.mechanism"},
		{"wrong password, PLAIN", strings.Replace(read(kafkatest.Plain), kafkatest.Alice.Password, canary, 1), clients, "check user name, password and sasl.mechanism"},
		{"plaintext to TLS", "", clients, "the listener seems to want TLS"},
		{"SASL_PLAINTEXT to TLS", strings.Replace(right, "SASL_SSL", "SASL_PLAINTEXT", 1), clients, "the listener seems to want TLS"},
		{"SSL to SASL_SSL", ca, clients, "the listener seems to want SASL"},
		{"SASL_SSL to SSL", right, mutual, "the listener wants a certificate of the client"},
		{"TLS to the listener between brokers", ca, k.Internal(t, 1), "the listener seems to be without TLS"},
		{"no CA", "security.protocol=SSL\n", mutual, "trust the CA"},
		{"no certificate", ca, mutual, "the listener wants a certificate of the client"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "client.properties")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			res := cmdtest.Run(t, cmdtest.Setup{}, "feature", "describe", "-b", c.server, "--command-config", file, "-o", "json", "--timeout", "1m").Want(t, 4)
			line := res.ErrorLine(t)
			if hint, _ := line["hint"].(string); !strings.Contains(hint, c.hint) {
				t.Errorf("%v, want the hint %q", line, c.hint)
			}
			if strings.Contains(res.Stdout+res.Stderr, canary) {
				t.Errorf("the password is told:\n%s%s", res.Stdout, res.Stderr)
			}
		})
	}
}

// findings are those of "doctor": "check subject state".
func findings(t *testing.T, k *kafkatest.Cluster, u kafkatest.User, code int, args ...string) []string {
	t.Helper()
	file := k.CommandConfig(t, u, kafkatest.ScramSHA512)
	args = append([]string{"doctor", "-b", k.Bootstrap()[0], "--command-config", file, "-o", "json"}, args...)
	res := cmdtest.Run(t, cmdtest.Setup{}, args...).Want(t, code)
	var doc struct {
		Kind  string
		Items []struct{ Check, Subject, State, Detail string }
	}
	if err := json.Unmarshal([]byte(res.Stdout), &doc); err != nil || doc.Kind != "doctor" {
		t.Fatalf("%v: %s", err, res.Stdout)
	}
	var out []string
	for _, f := range doc.Items {
		op, _, _ := strings.Cut(strings.TrimPrefix(f.Detail, "missing: "), ":")
		if f.Check != "acl" {
			op = ""
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", f.Check, f.Subject, op, f.State)))
	}
	return out
}

// What the doctor finds of ACLs is what Kafka's own tool has set.
func TestDoctorOnKafka(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Security: kafkatest.SASLSSL, Authorizer: true})
	ctx := t.Context()
	if _, err := k.Tool(ctx, kafkatest.TopicTool, "--create", "--topic", "doctored"); err != nil {
		t.Fatal(err)
	}
	all := findings(t, k, kafkatest.Admin, 0, "--topic", "doctored", "--transactional-id", "x")
	for _, want := range []string{
		"bootstrap_server " + k.Bootstrap()[0] + "  ok", "identity   ok", "broker 1  ok", "txn_share_acknowledge   warning",
		"acl cluster DESCRIBE ok", "acl cluster ALTER ok", "acl cluster CLUSTER_ACTION ok", "acl cluster DESCRIBE_CONFIGS ok",
		"acl topic doctored READ ok", "acl topic doctored WRITE ok", "acl transactional_id * DESCRIBE ok", "acl transactional_id x DESCRIBE ok",
	} {
		if !slices.Contains(all, want) {
			t.Errorf("as a super user there is no %q in\n%s", want, strings.Join(all, "\n"))
		}
	}
	none := findings(t, k, kafkatest.Alice, 3, "--topic", "doctored")
	for _, want := range []string{
		"acl cluster DESCRIBE warning", "acl cluster ALTER unknown", "acl topic doctored DESCRIBE warning", "acl topic doctored READ unknown",
		"acl transactional_id * DESCRIBE warning", "state_topic __share_group_state  unknown",
	} {
		if !slices.Contains(none, want) {
			t.Errorf("as a user without ACLs there is no %q in\n%s", want, strings.Join(none, "\n"))
		}
	}
	for _, args := range [][]string{
		{"--operation", "Describe", "--cluster"},
		{"--operation", "Read", "--topic", "doctored"},
		{"--operation", "Describe", "--transactional-id", "*"},
	} {
		args = append([]string{"--add", "--allow-principal", "User:alice"}, args...)
		if _, err := k.Tool(ctx, kafkatest.ACLTool, args...); err != nil {
			t.Fatal(err)
		}
	}
	wanted := []string{
		"acl cluster DESCRIBE ok", "acl cluster ALTER warning", "acl cluster CLUSTER_ACTION warning", "acl cluster DESCRIBE_CONFIGS warning",
		"acl topic doctored DESCRIBE ok", "acl topic doctored READ ok", "acl topic doctored WRITE warning", "acl transactional_id * DESCRIBE ok",
	}
	// Brokers hear of ACLs a moment later.
	deadline := time.Now().Add(2 * time.Minute)
	for {
		some := findings(t, k, kafkatest.Alice, 3, "--topic", "doctored")
		missing := slices.DeleteFunc(slices.Clone(wanted), func(w string) bool { return slices.Contains(some, w) })
		if len(missing) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with some ACLs there is no %q in\n%s", missing, strings.Join(some, "\n"))
		}
	}
}

// GSSAPI, with a key distribution centre that is Apache Kerby. Kafka's own tool is
// not asked: it would want a ticket for the name that the resolver has for the
// broker's address.
func TestKerberosOnKafka(t *testing.T) {
	kdc := kafkatest.StartKDC(t, "kafka/127.0.0.1", "alice")
	t.Setenv("JDK_JAVA_OPTIONS", "-Djava.security.krb5.conf="+kdc.Config)
	k := kafkatest.Start(t, kafkatest.Config{Security: kafkatest.SASLSSL, Props: map[string]string{
		"listener.name.client.sasl.enabled.mechanisms":    "GSSAPI,PLAIN",
		"listener.name.client.sasl.kerberos.service.name": "kafka",
		"listener.name.client.gssapi.sasl.jaas.config": fmt.Sprintf(
			"com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=%q principal=%q;",
			filepath.ToSlash(kdc.Keytab("kafka/127.0.0.1")), "kafka/127.0.0.1@"+kdc.Realm),
	}})
	file := filepath.Join(t.TempDir(), "client.properties")
	properties := fmt.Sprintf("security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location=%s\nsasl.kerberos.service.name=kafka\n"+
		"sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=%q principal=%q;\n",
		filepath.ToSlash(k.CAFile()), filepath.ToSlash(kdc.Keytab("alice")), "alice@"+kdc.Realm)
	if err := os.WriteFile(file, []byte(properties), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KSHARE_SASL_KERBEROS_CONFIG": kdc.Config}
	res := cmdtest.Run(t, cmdtest.Setup{Env: env}, "feature", "describe", "-b", k.Bootstrap()[0], "--command-config", file, "-o", "csv").Want(t, 0)
	if !strings.Contains(res.Stdout, "share.version,1,0,2,") || strings.Contains(res.Stderr, "not used") {
		t.Errorf("kshare: %s%s", res.Stdout, res.Stderr)
	}
	// A ticket that cannot be had is told as what it is.
	wrong := strings.Replace(properties, "service.name=kafka", "service.name=other", 1)
	if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	line := cmdtest.Run(t, cmdtest.Setup{Env: env}, "feature", "describe", "-b", k.Bootstrap()[0], "--command-config", file, "-o", "json").Want(t, 4).ErrorLine(t)
	if text, _ := line["error"].(string); !strings.Contains(text, "SASL GSSAPI: ") {
		t.Errorf("for a service that the KDC does not know: %v", line)
	}
}
