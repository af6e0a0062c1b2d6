package auth

import (
	"bytes"
	"crypto"
	"crypto/sha1" //nolint:gosec // the digest of a JKS store
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"software.sslmate.com/src/go-pkcs12"
)

// The types of a store.
const (
	storePEM    = "PEM"
	storeJKS    = "JKS"
	storePKCS12 = "PKCS12"
)

// storeTypeOf tells what a file is. Java does not go by the configured type
// either where that is JKS or PKCS12: both open both.
func storeTypeOf(data []byte, configured string) string {
	switch {
	case configured == storePEM:
		return storePEM
	case bytes.HasPrefix(data, []byte("\xfe\xed\xfe\xed")):
		return storeJKS
	case bytes.HasPrefix(data, []byte("\xce\xce\xce\xce")):
		return "JCEKS"
	case bytes.HasPrefix(data, []byte{0x30}): // a DER sequence
		return storePKCS12
	case bytes.Contains(data, []byte("-----BEGIN")):
		return storePEM
	}
	return ""
}

// readStore reads a file and tells what it is.
func readStore(file, configured string) (data []byte, kind string, err error) {
	data, err = os.ReadFile(file)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the message has the name already
		}
		return nil, "", &ConfigError{File: file, Reason: "open store", Err: err}
	}
	kind = storeTypeOf(data, configured)
	switch kind {
	case storePEM, storeJKS, storePKCS12:
		return data, kind, nil
	case "":
		return nil, "", &ConfigError{File: file, Reason: "is neither PEM nor a PKCS12 or JKS store"}
	}
	return nil, "", (&ConfigError{File: file, Reason: "is a " + kind + " store, which is not supported"}).
		advise("make a PKCS12 store of it: keytool -importkeystore -srcstoretype %s -deststoretype PKCS12 ...", kind)
}

// pool returns the trusted certificates; nil for those of the system.
func (s TrustStore) pool() (*x509.CertPool, error) {
	var certs []*x509.Certificate
	var err error
	switch {
	case s.PEM != "":
		certs, err = pemCertificates(s.PEM)
	case s.File != "":
		certs, err = s.open()
	default:
		return nil, nil //nolint:nilnil // crypto/tls takes nil for the system's
	}
	if err == nil && len(certs) == 0 {
		err = &ConfigError{Reason: "has no trusted certificate", Advice: "import the certificate of the CA that signed the brokers': keytool -importcert, or its PEM file"}
	}
	if err != nil {
		return nil, inFile(err, s.File)
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, nil
}

func (s TrustStore) open() ([]*x509.Certificate, error) {
	data, kind, err := readStore(s.File, s.Type)
	if err != nil {
		return nil, err
	}
	switch kind {
	case storeJKS:
		return jksTrusted(data, s.Password)
	case storePKCS12:
		certs, err := pkcs12.DecodeTrustStore(data, string(s.Password))
		if err != nil {
			return nil, pkcs12Error(err)
		}
		return certs, nil
	}
	return pemCertificates(string(data))
}

// pkcs12Error says what a failure of the library means here.
func pkcs12Error(err error) error {
	switch {
	case errors.Is(err, pkcs12.ErrIncorrectPassword):
		return &ConfigError{Reason: "the password of the PKCS12 store is wrong or missing"}
	case strings.Contains(err.Error(), "not marked as trusted"), strings.Contains(err.Error(), "expected only certificate bags"),
		strings.Contains(err.Error(), "expected exactly 1 items"): // a store with a key
		return &ConfigError{
			Reason: "the PKCS12 store has a certificate that Java does not trust",
			Advice: "make a store of trusted certificates alone: keytool -importcert -trustcacerts -file ca.pem -keystore FILE",
		}
	}
	return &ConfigError{Reason: "open PKCS12 store", Err: err}
}

// loadJKS opens a JKS store. Without a password it is not checked whether the
// store was tampered with, as in Java.
func loadJKS(data []byte, password Secret) (keystore.KeyStore, error) {
	ks := keystore.New(keystore.WithOrderedAliases(), keystore.WithCaseExactAliases())
	if password == "" && len(data) > sha1.Size {
		body := data[:len(data)-sha1.Size]
		data = append(bytes.Clone(body), jksDigest(body, "")...)
	}
	if err := ks.Load(bytes.NewReader(data), []byte(password)); err != nil {
		if strings.Contains(err.Error(), "invalid digest") {
			return ks, &ConfigError{Reason: "the password of the JKS store is wrong"}
		}
		return ks, &ConfigError{Reason: "open JKS store", Err: err}
	}
	return ks, nil
}

// jksDigest is what ends a JKS store with this contents and password.
func jksDigest(body []byte, password string) []byte {
	h := sha1.New() //nolint:gosec // the digest of a JKS store
	for _, u := range utf16.Encode([]rune(password)) {
		_ = binary.Write(h, binary.BigEndian, u) // a hash takes everything
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(body)
	return h.Sum(nil)
}

// jksTrusted returns the certificates that Java trusts by a store: the trusted
// ones, and the first of each key.
func jksTrusted(data []byte, password Secret) ([]*x509.Certificate, error) {
	ks, err := loadJKS(data, password)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, alias := range ks.Aliases() {
		var entry keystore.Certificate
		switch {
		case ks.IsTrustedCertificateEntry(alias):
			e, err := ks.GetTrustedCertificateEntry(alias)
			if err != nil {
				return nil, &ConfigError{Reason: "open JKS store", Err: err}
			}
			entry = e.Certificate
		case ks.IsPrivateKeyEntry(alias):
			chain, err := ks.GetPrivateKeyEntryCertificateChain(alias)
			if err != nil || len(chain) == 0 {
				continue
			}
			entry = chain[0]
		}
		c, err := x509.ParseCertificate(entry.Content)
		if err != nil {
			return nil, &ConfigError{Reason: "certificate in the JKS store", Err: err}
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// certificate returns the key and its certificates; nil where there is none.
func (s KeyStore) certificate() (*tls.Certificate, error) {
	var key crypto.PrivateKey
	var chain []*x509.Certificate
	var err error
	file := s.File
	switch {
	case s.KeyPEM != "" || s.CertificatePEM != "":
		key, chain, err = pemKeyPair(s.CertificatePEM, string(s.KeyPEM), s.KeyPassword)
	case s.CertificateFile != "" || s.KeyFile != "":
		return s.fromFiles()
	case s.File != "":
		key, chain, err = s.open()
	default:
		return nil, nil //nolint:nilnil // there is none to show
	}
	if err != nil {
		return nil, inFile(err, file)
	}
	c, err := newCertificate(key, chain)
	return c, inFile(err, file)
}

func (s KeyStore) fromFiles() (*tls.Certificate, error) {
	cert, _, err := readStore(s.CertificateFile, storePEM)
	if err != nil {
		return nil, err
	}
	chain, err := pemCertificates(string(cert))
	if err != nil {
		return nil, inFile(err, s.CertificateFile)
	}
	data, _, err := readStore(s.KeyFile, storePEM)
	if err != nil {
		return nil, err
	}
	key, err := pemKey(string(data), s.KeyPassword)
	if err != nil {
		return nil, inFile(err, s.KeyFile)
	}
	c, err := newCertificate(key, chain)
	return c, inFile(err, s.CertificateFile)
}

func (s KeyStore) open() (crypto.PrivateKey, []*x509.Certificate, error) {
	data, kind, err := readStore(s.File, s.Type)
	if err != nil {
		return nil, nil, err
	}
	switch kind {
	case storeJKS:
		return jksKey(data, s.Password, s.KeyPassword)
	case storePKCS12:
		key, cert, more, err := pkcs12.DecodeChain(data, string(s.Password))
		if err != nil {
			return nil, nil, pkcs12Error(err)
		}
		return key, append([]*x509.Certificate{cert}, more...), nil
	}
	return pemKeyPair(string(data), string(data), s.KeyPassword)
}

// jksKey returns the key of the first alias that has one.
func jksKey(data []byte, password, keyPassword Secret) (crypto.PrivateKey, []*x509.Certificate, error) {
	ks, err := loadJKS(data, password)
	if err != nil {
		return nil, nil, err
	}
	if keyPassword == "" {
		keyPassword = password
	}
	i := slices.IndexFunc(ks.Aliases(), ks.IsPrivateKeyEntry)
	if i < 0 {
		return nil, nil, &ConfigError{Reason: "the JKS store has no key"}
	}
	e, err := ks.GetPrivateKeyEntry(ks.Aliases()[i], []byte(keyPassword))
	if err != nil {
		return nil, nil, &ConfigError{Reason: "the password of the key in the JKS store is wrong", Advice: "set ssl.key.password where it is not that of the store"}
	}
	key, err := x509.ParsePKCS8PrivateKey(e.PrivateKey)
	if err != nil {
		return nil, nil, &ConfigError{Reason: "key in the JKS store", Err: err}
	}
	var chain []*x509.Certificate
	for _, entry := range e.CertificateChain {
		c, err := x509.ParseCertificate(entry.Content)
		if err != nil {
			return nil, nil, &ConfigError{Reason: "certificate in the JKS store", Err: err}
		}
		chain = append(chain, c)
	}
	return key, chain, nil
}

// newCertificate puts the certificate of the key first.
func newCertificate(key crypto.PrivateKey, chain []*x509.Certificate) (*tls.Certificate, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, &ConfigError{Reason: "the key is of a kind that TLS does not take"}
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok {
		return nil, &ConfigError{Reason: "the key is of a kind that TLS does not take"}
	}
	i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return public.Equal(c.PublicKey) })
	if i < 0 {
		return nil, &ConfigError{Reason: "has no certificate of its key"}
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: chain[i]}
	for _, c := range append([]*x509.Certificate{chain[i]}, slices.Delete(slices.Clone(chain), i, i+1)...) {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out, nil
}

// DescribeCertificate is a certificate in a few words: whose it is, and until
// when.
func DescribeCertificate(c *x509.Certificate) string {
	return fmt.Sprintf("%s, valid until %s", c.Subject, c.NotAfter.UTC().Format(time.DateOnly))
}
