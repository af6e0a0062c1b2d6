package commands

import (
	"context"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/spf13/pflag"
)

// connection is what a command that needs a cluster can be told about it.
type connection struct {
	Dialect string // "" decides by what the brokers advertise
}

func (c *connection) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&c.Dialect, "dialect", "", "assume `name` where the brokers' ApiVersions are ambiguous: "+dialectChoice())
}

// connect opens a connection to the cluster that the flags or the environment
// name. The caller closes it.
func (d *Deps) connect(ctx context.Context, c connection) (*cluster.Client, error) {
	servers, err := d.bootstrap()
	if err != nil {
		return nil, err
	}
	return cluster.Connect(ctx, cluster.Config{BootstrapServers: servers, Dialect: c.Dialect})
}

// dialectChoice names the dialects in a help text.
func dialectChoice() string { return strings.Join(dialectNames(), " or ") }
