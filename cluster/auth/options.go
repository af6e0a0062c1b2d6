package auth

import (
	"crypto/tls"

	"github.com/twmb/franz-go/pkg/sasl"
)

// Options is how a client proves to brokers who it is, and they to it. The zero
// value is a plaintext connection of nobody.
type Options struct {
	TLS  *TLS  // nil connects in plaintext
	SASL *SASL // nil does not authenticate by SASL
}

// Client makes what [cluster.Config] takes: it opens files and checks that all
// is there that the mechanism needs. The first is nil without TLS, the second
// without SASL. It may return *ConfigError.
//
// [cluster.Config]: https://pkg.go.dev/github.com/kshare/kshare/cluster#Config
func (o Options) Client() (*tls.Config, []sasl.Mechanism, error) {
	var config *tls.Config
	if o.TLS != nil {
		var err error
		if config, err = o.TLS.Config(); err != nil {
			return nil, nil, err
		}
	}
	if o.SASL == nil {
		return config, nil, nil
	}
	m, err := o.SASL.Mechanism()
	if err != nil {
		return nil, nil, err
	}
	return config, []sasl.Mechanism{m}, nil
}

// Protocol is the name of the security.protocol that o is.
func (o Options) Protocol() string {
	switch {
	case o.TLS != nil && o.SASL != nil:
		return "SASL_SSL"
	case o.TLS != nil:
		return "SSL"
	case o.SASL != nil:
		return "SASL_PLAINTEXT"
	}
	return "PLAINTEXT"
}
