package auth

import (
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/youmark/pkcs8"
)

// pemBlock is a block of a PEM text.
type pemBlock struct {
	kind string // such as "CERTIFICATE"
	der  []byte
}

// pemBlocks finds the blocks of a text. As in Kafka, any white space does for
// the ends of lines: in a properties file a value is one line.
func pemBlocks(text string) ([]pemBlock, error) {
	block := regexp.MustCompile(`-----BEGIN\s+([A-Z0-9 ]+?)-----\s((?:[A-Za-z0-9-]+:[^\r\n]*[\r\n]+)*)([a-zA-Z0-9/+=\s]*)-----END\s+([A-Z0-9 ]+?)-----`)
	var out []pemBlock
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[2], "ENCRYPTED") {
			return nil, &ConfigError{Reason: "the key is encrypted in the old format of OpenSSL", Advice: "convert it: openssl pkcs8 -topk8 -in key.pem -out key8.pem"}
		}
		der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(m[3]), ""))
		if err != nil || m[1] != m[4] {
			return nil, &ConfigError{Reason: "malformed PEM block of a " + m[1]}
		}
		out = append(out, pemBlock{m[1], der})
	}
	return out, nil
}

// pemCertificates returns the certificates of a text, which must have some.
func pemCertificates(text string) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(text)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for _, b := range blocks {
		if !strings.HasSuffix(b.kind, "CERTIFICATE") {
			continue
		}
		c, err := x509.ParseCertificate(b.der)
		if err != nil {
			return nil, &ConfigError{Reason: "certificate in PEM", Err: err}
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, &ConfigError{Reason: "has no certificate in PEM"}
	}
	return out, nil
}

// pemKey returns the private key of a text, which must have one.
func pemKey(text string, password Secret) (crypto.PrivateKey, error) {
	blocks, err := pemBlocks(text)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		var key any
		var err error
		switch b.kind {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(b.der)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(b.der)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(b.der)
		case "ENCRYPTED PRIVATE KEY":
			return decryptKey(b.der, password)
		default:
			continue
		}
		if err != nil {
			return nil, &ConfigError{Reason: "private key in PEM", Err: err}
		}
		return key, nil
	}
	return nil, &ConfigError{Reason: "has no private key in PEM"}
}

func pemKeyPair(certificates, key string, password Secret) (crypto.PrivateKey, []*x509.Certificate, error) {
	chain, err := pemCertificates(certificates)
	if err != nil {
		return nil, nil, err
	}
	k, err := pemKey(key, password)
	return k, chain, err
}

// decryptKey opens an EncryptedPrivateKeyInfo.
func decryptKey(der []byte, password Secret) (crypto.PrivateKey, error) {
	if password == "" {
		return nil, &ConfigError{Reason: "the private key is encrypted and no password is given", Advice: "set ssl.key.password, or tls_key_password_file"}
	}
	plain, ok, err := decryptPBES1(der, string(password))
	if err != nil {
		return nil, err
	}
	var key any
	if ok {
		key, err = x509.ParsePKCS8PrivateKey(plain)
	} else {
		key, err = pkcs8.ParsePKCS8PrivateKey(der, []byte(password))
	}
	if err != nil {
		return nil, &ConfigError{Reason: "the password of the private key is wrong, or its encryption is not supported", Advice: "openssl pkcs8 -topk8 encrypts it in a form that is"}
	}
	return key, nil
}
