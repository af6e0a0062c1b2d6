package cluster_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// certificate is one for the loopback address that expires at a time.
func certificate(t *testing.T, expires time.Time, hosts ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: expires,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if len(hosts) == 0 {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Client and listener do not agree on security.protocol: it is told at once, what
// the listener seems to be, and what to set.
func TestConnectMismatch(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	good, pool := certificate(t, hour)
	expired, expiredPool := certificate(t, time.Now().Add(-time.Hour))
	other, otherPool := certificate(t, hour, "broker.example")
	start := func(opts ...kfake.Opt) string {
		t.Helper()
		c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c.ListenAddrs()[0]
	}
	server := func(c tls.Certificate) kfake.Opt { return kfake.TLS(&tls.Config{Certificates: []tls.Certificate{c}}) }
	plaintext := start()
	overTLS := start(server(good))
	overExpired := start(server(expired))
	overOther := start(server(other))
	mutual := start(kfake.TLS(&tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}))
	tls13 := start(kfake.TLS(&tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS13}))
	withSASL := start(kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "right"))
	resets := resetting(t)
	trust := func(p *x509.CertPool) *tls.Config { return &tls.Config{RootCAs: p} }
	login := func(pass string) []sasl.Mechanism {
		return []sasl.Mechanism{plain.Auth{User: "u", Pass: pass}.AsMechanism()}
	}
	for _, c := range []struct {
		name string
		addr string
		tls  *tls.Config
		sasl []sasl.Mechanism
		want string // in the hint; "" connects
	}{
		{"plaintext", plaintext, nil, nil, ""},
		{"TLS", overTLS, trust(pool), nil, ""},
		{"SASL", withSASL, nil, login("right"), ""},
		{"plaintext to TLS", overTLS, nil, nil, "the listener seems to want TLS, and the client does not speak it: set security.protocol"},
		{"SASL in plaintext to TLS", overTLS, nil, login("right"), "the listener seems to want TLS, and the client does not speak it: set security.protocol"},
		{"plaintext to what hangs up at once", resets, nil, nil, "the listener seems to want TLS or SASL, and the client speaks neither: set security.protocol"},
		{"SASL in plaintext to what hangs up at once", resets, nil, login("right"), "the listener seems to want TLS, or no SASL: check security.protocol"},
		{"TLS to what hangs up at once", resets, trust(pool), nil, "the listener seems to be without TLS"},
		{"TLS to plaintext", plaintext, trust(pool), nil, "the listener seems to be without TLS, which the client speaks: check the port, or set security.protocol"},
		{"TLS to SASL in plaintext", withSASL, trust(pool), login("right"), "the listener seems to be without TLS"},
		{"no SASL to SASL", withSASL, nil, nil, "the listener seems to want TLS or SASL, and the client speaks neither: set security.protocol"},
		{"wrong password", withSASL, nil, login("wrong"), "check user, password, sasl.mechanism"},
		{"mechanism that the broker has not", withSASL, nil, []sasl.Mechanism{scram.Auth{User: "u", Pass: "x"}.AsSha512Mechanism()}, "sasl.mechanism"},
		{"not trusted", overTLS, &tls.Config{}, nil, "trust the CA that signed the broker's certificate"},
		{"expired", overExpired, trust(expiredPool), nil, "the broker's certificate has to be renewed"},
		{"another host", overOther, trust(otherPool), nil, "--tls-server-name"},
		{"no certificate of the client", mutual, trust(pool), nil, "the listener wants a certificate of the client"},
		{"another version of TLS", tls13, &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12}, nil, "do not agree on a version or a cipher suite of TLS"},
		{"no token", withSASL, nil, mechanism(t, auth.SASL{Name: "OAUTHBEARER", OAuth: auth.OAuth{TokenFile: "/nope"}}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: []string{c.addr}, TLS: c.tls, SASL: c.sasl, Version: "1.2.3+dirty"})
			if err == nil {
				cl.Close()
				if c.want != "" || c.name == "no token" {
					t.Errorf("it connects, want %q", c.want)
				}
				return
			}
			e, ok := errors.AsType[*cluster.AuthError](err)
			if !ok || !strings.Contains(e.Hint(), c.want) || !strings.Contains(err.Error(), c.addr) {
				t.Errorf("Connect = %v (%v), want an *AuthError with the hint %q", err, e, c.want)
			}
		})
	}
}

// resetting is a listener that resets a connection on which it has read something,
// and says nothing: what a listener with TLS may look like, when its alert is lost.
func resetting(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

func mechanism(t *testing.T, s auth.SASL) []sasl.Mechanism {
	t.Helper()
	m, err := s.Mechanism()
	if err != nil {
		t.Fatal(err)
	}
	return []sasl.Mechanism{m}
}
