package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/youmark/pkcs8"
)

// encryptKey writes a key that Java has made to stdout, in PEM, encrypted as it
// was told to: by PBES1 with triple DES.
const encryptKey = `
import java.security.*;
import java.util.Base64;
import javax.crypto.*;
import javax.crypto.spec.*;

public class Main {
    public static void main(String[] args) throws Exception {
        KeyStore ks = KeyStore.getInstance(new java.io.File(args[0]), args[1].toCharArray());
        byte[] plain = ks.getKey("a", args[1].toCharArray()).getEncoded();
        SecretKey key = SecretKeyFactory.getInstance("PBEWithSHA1AndDESede").generateSecret(new PBEKeySpec(args[2].toCharArray()));
        Cipher cipher = Cipher.getInstance("PBEWithSHA1AndDESede");
        cipher.init(Cipher.ENCRYPT_MODE, key, new PBEParameterSpec("12345678".getBytes(), 2048));
        byte[] der = new EncryptedPrivateKeyInfo(cipher.getParameters(), cipher.doFinal(plain)).getEncoded();
        System.out.println("-----BEGIN ENCRYPTED PRIVATE KEY-----\n" + Base64.getMimeEncoder().encodeToString(der) + "\n-----END ENCRYPTED PRIVATE KEY-----");
    }
}
`

// javaStores makes stores with keytool, as operators do.
func javaStores(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	pair := func(store, kind, pass, keyPass string, more ...string) {
		kafkatest.Keytool(t, dir, append([]string{
			"-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=" + store, "-validity", "3650",
			"-storetype", kind, "-keystore", store, "-storepass", pass, "-keypass", keyPass,
		}, more...)...)
	}
	pair("key.p12", "PKCS12", "s3cret", "s3cret")
	pair("key.jks", "JKS", "secret", "secret")
	pair("other-pass.jks", "JKS", "secret", "k3ysecret")
	pair("key.jceks", "JCEKS", "secret", "secret")
	kafkatest.Keytool(t, dir, "-exportcert", "-rfc", "-alias", "a", "-keystore", "key.jks", "-storepass", "secret", "-file", "a.pem")
	for _, s := range []struct{ file, kind string }{{"trust.p12", "PKCS12"}, {"trust.jks", "JKS"}} {
		kafkatest.Keytool(t, dir, "-importcert", "-noprompt", "-alias", "ca", "-file", "a.pem", "-storetype", s.kind, "-keystore", s.file, "-storepass", "secret")
	}
	kafkatest.Keytool(t, dir, "-importcert", "-noprompt", "-alias", "b", "-file", "a.pem", "-keystore", "mixed.jks", "-storetype", "JKS", "-storepass", "secret")
	kafkatest.Keytool(t, dir, "-importkeystore", "-srckeystore", "other-pass.jks", "-srcstorepass", "secret", "-srcalias", "a", "-srckeypass", "k3ysecret",
		"-destkeystore", "mixed.jks", "-deststoretype", "JKS", "-deststorepass", "secret", "-destkeypass", "k3ysecret")
	return dir
}

func TestJavaStores(t *testing.T) {
	kafkatest.Need(t)
	dir := javaStores(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		name  string
		store KeyStore
		want  string // common name of the certificate, or what the error says
	}{
		{"PKCS12", KeyStore{File: "key.p12", Type: "PKCS12", Password: "s3cret"}, "key.p12"},
		{"PKCS12 that is said to be JKS", KeyStore{File: "key.p12", Type: "JKS", Password: "s3cret"}, "key.p12"},
		{"JKS", KeyStore{File: "key.jks", Type: "JKS", Password: "secret"}, "key.jks"},
		{"JKS that is said to be PKCS12", KeyStore{File: "key.jks", Type: "PKCS12", Password: "secret"}, "key.jks"},
		{"no type", KeyStore{File: "key.jks", Password: "secret"}, "key.jks"},
		{"key with another password", KeyStore{File: "other-pass.jks", Password: "secret", KeyPassword: "k3ysecret"}, "other-pass.jks"},
		{"key beside a trusted certificate", KeyStore{File: "mixed.jks", Password: "secret", KeyPassword: "k3ysecret"}, "other-pass.jks"},
		{"store password is not checked without one", KeyStore{File: "key.jks", KeyPassword: "secret"}, "key.jks"},

		{"wrong password, PKCS12", KeyStore{File: "key.p12", Password: "hunter2"}, "the password of the PKCS12 store is wrong or missing"},
		{"no password, PKCS12", KeyStore{File: "key.p12"}, "the password of the PKCS12 store is wrong or missing"},
		{"wrong password, JKS", KeyStore{File: "key.jks", Password: "hunter2"}, "the password of the JKS store is wrong"},
		{"wrong password of the key", KeyStore{File: "other-pass.jks", Password: "secret"}, "the password of the key in the JKS store is wrong"},
		{"no key", KeyStore{File: "trust.jks", Password: "secret"}, "the JKS store has no key"},
		{"no key, PKCS12", KeyStore{File: "trust.p12", Password: "secret"}, "open PKCS12 store"},
		{"JCEKS", KeyStore{File: "key.jceks", Password: "secret"}, "is a JCEKS store, which is not supported"},
		{"not there", KeyStore{File: "nope.jks"}, "nope.jks: open store: "},
		{"PEM without a key", KeyStore{File: "a.pem"}, "has no private key in PEM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.store.File = file(c.store.File)
			got, err := c.store.certificate()
			if got != nil {
				if got.Leaf.Subject.CommonName != c.want {
					t.Errorf("the certificate is of %q, want %q", got.Leaf.Subject.CommonName, c.want)
				}
				return
			}
			e, ok := errors.AsType[*ConfigError](err)
			if !ok || !strings.Contains(e.Error(), c.want) || e.File != c.store.File || strings.Contains(e.Error()+e.Hint(), "hunter2") {
				t.Errorf("certificate() = %v, want %q of %s", err, c.want, c.store.File)
			}
		})
	}
	for _, c := range []struct {
		name  string
		store TrustStore
		want  string // what the error says; "" is none
	}{
		{"PKCS12", TrustStore{File: "trust.p12", Type: "PKCS12", Password: "secret"}, ""},
		{"JKS", TrustStore{File: "trust.jks", Type: "JKS", Password: "secret"}, ""},
		{"JKS without password", TrustStore{File: "trust.jks"}, ""},
		{"PEM", TrustStore{File: "a.pem", Type: "PEM"}, ""},
		{"PEM by its contents", TrustStore{File: "a.pem"}, ""},
		{"key store", TrustStore{File: "key.jks", Password: "secret"}, ""},
		{"PKCS12 without password", TrustStore{File: "trust.p12"}, "the password of the PKCS12 store is wrong or missing"},
		{"wrong password", TrustStore{File: "trust.jks", Password: "hunter2"}, "the password of the JKS store is wrong"},
		{"key store, PKCS12", TrustStore{File: "key.p12", Password: "s3cret"}, "certificate that Java does not trust"},
		{"a store that is said to be PEM", TrustStore{File: "trust.jks", Type: "PEM"}, "has no certificate in PEM"},
	} {
		t.Run("trust, "+c.name, func(t *testing.T) {
			c.store.File = file(c.store.File)
			pool, err := c.store.pool()
			switch {
			case c.want == "" && (err != nil || pool == nil):
				t.Errorf("pool() = %v, %v, want certificates", pool, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("pool() = %v, want %q", err, c.want)
			}
		})
	}
	t.Run("encrypted PEM of Java", func(t *testing.T) {
		encrypted := string(kafkatest.RunJava(t, kafkatest.Kafka44, encryptKey, nil, file("key.jks"), "secret", "p4ss word"))
		want, err := KeyStore{File: file("key.jks"), Password: "secret"}.certificate()
		if err != nil {
			t.Fatal(err)
		}
		key, err := pemKey(encrypted, "p4ss word")
		if err != nil || !want.PrivateKey.(*ecdsa.PrivateKey).Equal(key) {
			t.Errorf("pemKey = %T, %v, want the key of the store", key, err)
		}
		for _, wrong := range []Secret{"hunter2", "p4ss", ""} {
			if _, err := pemKey(encrypted, wrong); err == nil || !strings.Contains(err.Error(), "password") {
				t.Errorf("pemKey with password %q = %v", string(wrong), err)
			}
		}
	})
}

// pair is a self-signed certificate for "localhost" and its key, in PEM.
func pair(t *testing.T) (certificate, key string, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", pkcs), private
}

func encodePEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// In a properties file a value is one line, and the ends of the lines of a PEM
// block are blanks.
func TestPEMForms(t *testing.T) {
	certificate, key, private := pair(t)
	ec, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pbes2, err := pkcs8.MarshalPrivateKey(private, []byte("secret"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert, key string
		password  Secret
	}{
		"as it is":                  {certificate, key, ""},
		"one line with blanks":      {strings.ReplaceAll(certificate, "\n", " "), strings.ReplaceAll(key, "\n", " "), ""},
		"CRLF":                      {strings.ReplaceAll(certificate, "\n", "\r\n"), strings.ReplaceAll(key, "\n", "\r\n"), ""},
		"text around":               {"subject=CN\n" + certificate + "issuer\n", "x\n" + key, ""},
		"no newline at the end":     {strings.TrimSpace(certificate), strings.TrimSpace(key), ""},
		"key and certificates":      {key + certificate, certificate + key, ""},
		"EC PRIVATE KEY":            {certificate, encodePEM("EC PRIVATE KEY", ec), ""},
		"encrypted, PBES2":          {certificate, encodePEM("ENCRYPTED PRIVATE KEY", pbes2), "secret"},
		"needless password":         {certificate, key, "secret"},
		"another certificate first": {otherCertificate(t) + certificate, key, ""},
	} {
		got, err := KeyStore{CertificatePEM: c.cert, KeyPEM: Secret(c.key), KeyPassword: c.password}.certificate()
		if err != nil || !private.Equal(got.PrivateKey) || got.Leaf.Subject.CommonName != "test" || !private.PublicKey.Equal(got.Leaf.PublicKey) {
			t.Errorf("%s: certificate() = %v, %v", name, got, err)
		}
	}
	for name, c := range map[string]struct{ cert, key, want string }{
		"no certificate":         {key, key, "has no certificate in PEM"},
		"certificate of another": {otherCertificate(t), key, "has no certificate of its key"},
		"damaged":                {strings.Replace(certificate, "M", "!", 1), key, "has no certificate in PEM"},
		"cut":                    {certificate[:100], key, "has no certificate in PEM"},
		"not base64":             {strings.Replace(certificate, "\nM", "\n=", 1), key, "malformed PEM block"},
		"not DER":                {encodePEM("CERTIFICATE", []byte("x")), key, "certificate in PEM"},
		"old encryption":         {certificate, "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----\n", "old format of OpenSSL"},
		"encrypted":              {certificate, encodePEM("ENCRYPTED PRIVATE KEY", pbes2), "is encrypted and no password is given"},
	} {
		if _, err := (KeyStore{CertificatePEM: c.cert, KeyPEM: Secret(c.key)}).certificate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: certificate() = %v, want %q", name, err, c.want)
		}
	}
}

func otherCertificate(t *testing.T) string {
	t.Helper()
	c, _, _ := pair(t)
	return c
}

func FuzzStores(f *testing.F) {
	for _, s := range []string{"\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00", "0\x03", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.HasPrefix(b, []byte("\xfe\xed\xfe\xed")) {
			return // the library allocates what the file says
		}
		file := filepath.Join(t.TempDir(), "store")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			func() error { _, err := KeyStore{File: file, Password: "x"}.certificate(); return err }(),
			func() error { _, err := TrustStore{File: file, Password: "x"}.pool(); return err }(),
		} {
			if err != nil {
				if _, ok := errors.AsType[*ConfigError](err); !ok {
					t.Errorf("%q: %T %v, want a *ConfigError", b, err, err)
				}
			}
		}
	})
}

// serveTLS accepts connections with a certificate and reports each handshake.
func serveTLS(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if conn.(*tls.Conn).Handshake() == nil {
					_, _ = conn.Write([]byte("ok"))
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestTLSConfig(t *testing.T) {
	certificate, key, _ := pair(t)
	server, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	addr := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{server}})
	addr13 := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{server}, MinVersion: tls.VersionTLS13})
	mutual := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots})
	trust := TrustStore{PEM: certificate}
	for name, c := range map[string]struct {
		addr string
		tls  TLS
		want string // "" is a connection
	}{
		"trusted, name of the certificate":     {addr, TLS{Trust: trust, ServerName: "localhost"}, ""},
		"another host":                         {addr, TLS{Trust: trust}, "doesn't contain any IP SANs"},
		"another host, not looked at":          {addr, TLS{Trust: trust, SkipHostName: true}, ""},
		"not trusted":                          {addr, TLS{ServerName: "localhost"}, "certificate signed by unknown authority"},
		"not trusted, host not looked at":      {addr, TLS{Trust: TrustStore{PEM: otherCertificate(t)}, SkipHostName: true}, "certificate"},
		"nothing is verified":                  {addr, TLS{SkipVerify: true}, ""},
		"nothing is verified, nor the host":    {addr, TLS{SkipVerify: true, SkipHostName: true}, ""},
		"old version only":                     {addr13, TLS{SkipVerify: true, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}, "protocol version"},
		"certificate of the client":            {mutual, TLS{Trust: trust, ServerName: "localhost", Key: KeyStore{CertificatePEM: certificate, KeyPEM: Secret(key)}}, ""},
		"certificate of the client is missing": {mutual, TLS{Trust: trust, ServerName: "localhost"}, "certificate required"},
	} {
		config, err := c.tls.Config()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if config.ServerName == "" {
			config.ServerName = "127.0.0.1" // kgo takes it from the address
		}
		conn, err := (&tls.Dialer{Config: config, NetDialer: &net.Dialer{Timeout: 5 * time.Second}}).DialContext(t.Context(), "tcp", c.addr)
		if err == nil {
			_, err = conn.Read(make([]byte, 2)) // in TLS 1.3 the server's refusal comes later
			_ = conn.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
