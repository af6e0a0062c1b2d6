package commands

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// configCheckOptions is everything "config check" can be told.
type configCheckOptions struct {
	Names []string // none is all
}

// configCheck is what was found about a configuration file.
type configCheck struct {
	File     string
	Findings []configFinding
}

// configFinding is one thing that was looked at.
type configFinding struct {
	Context string `json:"context,omitempty"` // "" for the file itself
	State   string `json:"state"`             // ok, warning or error
	Detail  string `json:"detail"`            // a sentence
	Advice  string `json:"advice,omitempty"`  // what to do
}

const (
	findingOK      = "ok"
	findingWarning = "warning"
	findingError   = "error"
)

func newConfigCheckCmd(d *Deps, run runFunc[configCheckOptions, *configCheck]) *cobra.Command {
	return &cobra.Command{
		Use:   "check [<context>...]",
		Short: "Look for mistakes in the configuration file",
		Long: `Look for mistakes in the configuration file and in the files that its contexts
name: keys that are not known, values that are none, properties files that are
misread, certificates and keys that cannot be opened, files that others can
read. Nothing is connected to, no command is run and no password is asked for;
'kshare doctor' connects.

A file that $KSHARE_CONFIG names has to be there; where it names none, there need
not be any. It ends with 64 when a context cannot be used.`,
		Example: `  kshare config check
  kshare config check prod -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := run(cmd.Context(), d, configCheckOptions{args})
			return d.show(configCheckView(c), err)
		},
	}
}

func runConfigCheck(_ context.Context, d *Deps, opts configCheckOptions) (*configCheck, error) {
	path := d.configPath()
	contexts, err := config.Read(path)
	switch {
	case err != nil:
		return nil, err
	case !contexts.Exists && d.Getenv("KSHARE_CONFIG") != "":
		return nil, hintf(usagef("$KSHARE_CONFIG: %s does not exist", path), "'kshare config set-context NAME' makes it")
	}
	names := opts.Names
	if len(names) == 0 {
		names = contexts.Names()
	}
	c := &configCheck{File: path}
	c.file(contexts)
	for _, name := range names {
		if err := c.context(contexts, name); err != nil {
			return nil, err
		}
	}
	for _, f := range c.Findings {
		if f.State == findingError {
			return c, usagef("the configuration file has mistakes")
		}
	}
	return c, nil
}

func (c *configCheck) add(context, state, detail, advice string) {
	c.Findings = append(c.Findings, configFinding{context, state, detail, advice})
}

// file looks at the file as a whole.
func (c *configCheck) file(contexts *config.Contexts) {
	n := len(contexts.All)
	if !contexts.Exists {
		c.add("", findingOK, "there is no configuration file, so there are no contexts", "'kshare config set-context NAME' makes it")
		return
	}
	switch _, err := contexts.Find(contexts.Current); {
	case contexts.Current == "":
		c.add("", findingOK, fmt.Sprintf("%d contexts, none of them current", n), "")
	case err != nil:
		c.add("", findingError, fmt.Sprintf("the current context %q is not there", contexts.Current), "choose one: kshare config use-context NAME")
	default:
		c.add("", findingOK, fmt.Sprintf("%d contexts, %q is current", n, contexts.Current), "")
	}
	if contexts.WiderThan0600 {
		c.add("", findingWarning, "the file has secrets and can be read by others", "chmod 600 "+contexts.Path)
	}
}

// context looks at a context; the error is that there is none of the name.
func (c *configCheck) context(contexts *config.Contexts, name string) error {
	if _, err := contexts.Find(name); err != nil {
		return err
	}
	r, err := contexts.Context(name)
	if err == nil {
		err = c.settings(name, r)
	}
	if err != nil {
		_, hint := classify(err)
		c.add(name, findingError, err.Error(), hint)
	}
	return nil
}

func (c *configCheck) settings(name string, r *config.Resolved) error {
	for _, w := range r.Warnings {
		c.add(name, findingWarning, w, "")
	}
	for _, f := range r.SecretFiles() {
		info, err := os.Stat(f)
		if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
			c.add(name, findingWarning, f+" has a secret and can be read by others", "chmod 600 "+f)
		}
	}
	opts, err := r.CheckOptions()
	if err != nil {
		return err
	}
	tlsConfig, mechanisms, err := opts.Client()
	if err != nil {
		return err
	}
	detail := opts.Protocol()
	if len(mechanisms) > 0 {
		detail += " by " + mechanisms[0].Name()
	}
	if tlsConfig != nil && len(tlsConfig.Certificates) > 0 {
		detail += ", certificate of " + auth.DescribeCertificate(tlsConfig.Certificates[0].Leaf)
	}
	if servers, _ := r.BootstrapServers(); len(servers) == 0 {
		c.add(name, findingWarning, "names no bootstrap server", setServerLine(name))
	}
	c.add(name, findingOK, detail, "")
	return nil
}

func configCheckView(c *configCheck) output.View {
	if c == nil {
		return output.View{}
	}
	t := output.NewTable("CONTEXT", "STATE", "DETAIL", "ADVICE")
	for _, f := range c.Findings {
		t.Row(orNA(known(f.Context)), findingCell(f.State), f.Detail, orNA(known(f.Advice)))
	}
	return output.View{
		Kind: "config.check", Version: 1, Items: c.Findings, Table: t,
		Data: contextsData{known(c.File)},
	}
}

func findingCell(state string) any {
	switch state {
	case findingOK:
		return output.Good(state)
	case findingWarning:
		return output.Warn(state)
	}
	return output.Bad(state)
}
