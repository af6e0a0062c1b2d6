package share_test

import (
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

func plainSASL(user, password string) []sasl.Mechanism {
	return []sasl.Mechanism{plain.Auth{User: user, Pass: password}.AsMechanism()}
}
