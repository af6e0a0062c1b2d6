package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// TLS says whom to trust, and which certificate to show.
type TLS struct {
	// Trust has the certificates of the CAs that brokers are trusted by; the
	// zero value is those of the system.
	Trust TrustStore
	// Key is the certificate to show to brokers that ask for one; the zero value
	// shows none.
	Key KeyStore
	// ServerName is the name that brokers' certificates must be for; "" is the
	// host of the address that is dialled.
	ServerName string
	// SkipVerify trusts any certificate.
	SkipVerify bool
	// SkipHostName verifies certificates, and not that they are for the host:
	// ssl.endpoint.identification.algorithm that is empty.
	SkipHostName bool
	// MinVersion and MaxVersion are of crypto/tls; 0 is TLS 1.2, and no limit.
	MinVersion, MaxVersion uint16
	// CipherSuites are of crypto/tls, for TLS 1.2; nil is Go's choice.
	CipherSuites []uint16
}

// TrustStore is where trusted certificates are: in a file, or here.
type TrustStore struct {
	File string
	// Type is PEM, JKS or PKCS12. JKS, PKCS12 and "" are told apart by the
	// contents, as Java does, and "" may be PEM too.
	Type     string
	Password Secret
	PEM      string // in place of File
}

// KeyStore is where a key and its certificates are: in one store, in two PEM
// files, or here.
type KeyStore struct {
	File     string
	Type     string // see [TrustStore]; a PEM file has key and certificates
	Password Secret // of the store
	// KeyPassword is that of the key, where it differs, and that of a key in PEM.
	KeyPassword Secret

	CertificateFile, KeyFile string // PEM, in place of File

	CertificatePEM string // in place of files
	KeyPEM         Secret
}

// Config opens the files and returns a new configuration. It may return
// *ConfigError.
func (t *TLS) Config() (*tls.Config, error) {
	roots, err := t.Trust.pool()
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		RootCAs: roots, ServerName: t.ServerName,
		MinVersion: max(t.MinVersion, tls.VersionTLS12), MaxVersion: t.MaxVersion,
		CipherSuites:       t.CipherSuites,
		InsecureSkipVerify: t.SkipVerify || t.SkipHostName, //nolint:gosec // asked for by name
	}
	if t.MinVersion != 0 {
		c.MinVersion = t.MinVersion
	}
	if t.SkipHostName && !t.SkipVerify {
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyChain(s, roots) }
	}
	key, err := t.Key.certificate()
	if err != nil {
		return nil, err
	}
	if key != nil {
		c.Certificates = []tls.Certificate{*key}
	}
	return c, nil
}

// verifyChain is what crypto/tls does but for the name.
func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the broker shows no certificate")
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := s.PeerCertificates[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return nil
}
