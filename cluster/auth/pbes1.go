package auth

import (
	"bytes"
	"crypto/cipher"
	"crypto/des"  //nolint:gosec // what the key is encrypted with
	"crypto/sha1" //nolint:gosec // what the key is encrypted with
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"unicode/utf16"
)

// pbeWithSHA1And3DES is the one scheme for encrypted PEM keys that all versions
// of Java which Kafka runs on can read (openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES;
// RFC 7292, appendix C), so Kafka's users have such keys. The libraries have it
// for PKCS12 stores alone.
var pbeWithSHA1And3DES = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 12, 1, 3}

// maxIterations bounds the work that a file can ask for.
const maxIterations = 10_000_000

// decryptPBES1 decrypts an EncryptedPrivateKeyInfo; false if it has another
// scheme.
func decryptPBES1(der []byte, password string) ([]byte, bool, error) {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Encrypted []byte
	}
	var params struct {
		Salt       []byte
		Iterations int
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, false, &ConfigError{Reason: "encrypted private key", Err: err}
	}
	if !info.Algorithm.Algorithm.Equal(pbeWithSHA1And3DES) {
		return nil, false, nil
	}
	if _, err := asn1.Unmarshal(info.Algorithm.Parameters.FullBytes, &params); err != nil || params.Iterations < 1 || params.Iterations > maxIterations {
		return nil, false, &ConfigError{Reason: "encrypted private key", Err: err}
	}
	var bmp []byte
	for _, u := range append(utf16.Encode([]rune(password)), 0) {
		bmp = append(bmp, byte(u>>8), byte(u))
	}
	block, err := des.NewTripleDESCipher(pkcs12KDF(1, bmp, params.Salt, params.Iterations, 24)) //nolint:gosec // see above
	if err != nil || len(info.Encrypted) == 0 || len(info.Encrypted)%block.BlockSize() != 0 {
		return nil, false, &ConfigError{Reason: "encrypted private key", Err: err}
	}
	plain := make([]byte, len(info.Encrypted))
	cipher.NewCBCDecrypter(block, pkcs12KDF(2, bmp, params.Salt, params.Iterations, block.BlockSize())).CryptBlocks(plain, info.Encrypted)
	// A wrong password shows in the padding, or else in what was padded.
	pad := int(plain[len(plain)-1])
	if pad == 0 || pad > block.BlockSize() || !bytes.HasSuffix(plain, bytes.Repeat([]byte{byte(pad)}, pad)) {
		return nil, true, nil
	}
	return plain[:len(plain)-pad], true, nil
}

// pkcs12KDF derives size bytes for a purpose: 1 is a key, 2 an IV (RFC 7292,
// appendix B.2).
func pkcs12KDF(purpose byte, password, salt []byte, iterations, size int) []byte {
	const v = 64 // block size of SHA-1
	fill := func(b []byte) []byte {
		if len(b) == 0 {
			return nil
		}
		n := (len(b) + v - 1) / v * v
		return bytes.Repeat(b, n/len(b)+1)[:n]
	}
	input := append(fill(salt), fill(password)...)
	diversifier := bytes.Repeat([]byte{purpose}, v)
	var out []byte
	for len(out) < size {
		a := sha1.Sum(append(bytes.Clone(diversifier), input...)) //nolint:gosec // see above
		for range iterations - 1 {
			a = sha1.Sum(a[:]) //nolint:gosec // see above
		}
		out = append(out, a[:]...)
		b := new(big.Int).SetBytes(fill(a[:])[:v])
		b.Add(b, big.NewInt(1))
		for i := 0; i < len(input); i += v {
			n := new(big.Int).SetBytes(input[i : i+v])
			sum := n.Add(n, b).Bytes()
			if len(sum) > v {
				sum = sum[len(sum)-v:]
			}
			clear(input[i : i+v])
			copy(input[i+v-len(sum):i+v], sum)
		}
	}
	return out[:size]
}
