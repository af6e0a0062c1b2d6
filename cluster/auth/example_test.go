package auth_test

import (
	"fmt"

	"github.com/kshare/kshare/cluster/auth"
)

func ExampleNewClientProperties() {
	props, err := auth.ParseProperties([]byte(`
bootstrap.servers = broker1:9092, broker2:9092
security.protocol = SASL_PLAINTEXT
sasl.mechanism    = PLAIN
sasl.jaas.config  = org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="alice" password="secret";
acks              = all
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := auth.NewClientProperties(props, auth.Override{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.BootstrapServers, c.Options.Protocol(), c.Options.SASL.User, c.Options.SASL.Password)
	fmt.Println(c.Warnings()[0])
	// Output:
	// [broker1:9092 broker2:9092] SASL_PLAINTEXT alice ***
	// properties: not used: acks (is for Java producers and consumers)
}
