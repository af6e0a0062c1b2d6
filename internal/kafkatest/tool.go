package kafkatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Main classes of Kafka's command-line tools.
const (
	ACLTool         = "org.apache.kafka.tools.AclCommand"
	FeatureTool     = "org.apache.kafka.tools.FeatureCommand"
	GroupsTool      = "org.apache.kafka.tools.GroupsCommand"
	ShareGroupTool  = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
	TopicTool       = "org.apache.kafka.tools.TopicCommand"
	TransactionTool = "org.apache.kafka.tools.TransactionsCommand"
)

// Tool runs one of Kafka's command-line tools of the cluster's release, as
// [Admin], and returns what it wrote to stdout. --bootstrap-server and
// --command-config come before args. It returns a *ToolError when the tool ends
// with another code than 0.
func (c *Cluster) Tool(ctx context.Context, class string, args ...string) (string, error) {
	connect := []string{"--bootstrap-server", strings.Join(c.Bootstrap(), ",")}
	if c.sec != nil {
		connect = append(connect, "--command-config", filepath.Join(c.dir, "admin.properties"))
	}
	return c.Java(ctx, class, append(connect, args...)...)
}

// Java runs a main class of the cluster's release with exactly args, and returns
// what it wrote to stdout. It returns a *ToolError when the class ends with
// another code than 0.
func (c *Cluster) Java(ctx context.Context, class string, args ...string) (string, error) {
	r, err := c.release(ctx, c.cfg.oldest())
	if err != nil {
		return "", err
	}
	return c.run(ctx, r, class, args...)
}

// run is [Cluster.Java] of one release.
func (c *Cluster) run(ctx context.Context, r release, class string, args ...string) (string, error) {
	arguments := append(append(r.jvm("128m", c.toolLog()), class), args...)
	cmd := exec.CommandContext(ctx, "java", arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	p, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	<-p.done
	if p.err == nil {
		return stdout.String(), nil
	}
	if ctx.Err() != nil {
		return stdout.String(), fmt.Errorf("%s: %w", class, context.Cause(ctx))
	}
	e := &ToolError{Class: class, Args: args, Code: -1, Stdout: stdout.String(), Stderr: stderr.String()}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		e.Code = exit.ExitCode()
	}
	return e.Stdout, e
}

// ToolError says that a tool ended with a code other than 0.
type ToolError struct {
	Class          string
	Args           []string
	Code           int // -1: ended by a signal
	Stdout, Stderr string
}

// Error has everything that the tool wrote.
func (e *ToolError) Error() string {
	return fmt.Sprintf("%s %s: code %d\n%s%s", e.Class, strings.Join(e.Args, " "), e.Code, e.Stdout, e.Stderr)
}
