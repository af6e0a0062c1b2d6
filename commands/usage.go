package commands

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// cobra makes help and usage texts from templates unless it is given functions.
// A program that executes a template keeps every exported method of every type
// in it, for the template might call them: kshare would be a quarter larger,
// and start more slowly for it.

// helpText is what --help shows of cmd.
func helpText(cmd *cobra.Command) string {
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	about = trimSpaceRight(about) + "\n"
	if !cmd.Runnable() && !cmd.HasSubCommands() {
		return about // a help topic
	}
	return about + "\n" + usageText(cmd)
}

// usageText is how to call cmd: sections with a blank line between them.
func usageText(cmd *cobra.Command) string {
	parent := cmd.HasAvailableSubCommands()
	var sections []string
	add := func(title, body string) {
		if body = trimSpaceRight(body); body != "" {
			sections = append(sections, title+":\n"+body+"\n")
		}
	}
	if parent {
		add("Usage", "  "+cmd.CommandPath()+" <command> [flags]")
	} else {
		add("Usage", "  "+cmd.UseLine())
	}
	add("Examples", cmd.Example)
	add("Commands", subcommandLines(cmd, (*cobra.Command).IsAvailableCommand))
	own, connecting := splitFlags(cmd.LocalFlags())
	add("Flags", own.FlagUsages())
	add("Connection flags ('kshare help settings')", connecting.FlagUsages())
	add("Global flags", cmd.InheritedFlags().FlagUsages())
	if !parent {
		add("Exit status", ExitStatus(cmd))
	}
	add("Topics ('kshare help <topic>')", subcommandLines(cmd, (*cobra.Command).IsAdditionalHelpTopicCommand))
	return strings.Join(sections, "\n")
}

// splitFlags takes the flags about the connection apart, of which there are many
// and which all commands that connect have.
func splitFlags(fs *pflag.FlagSet) (own, connecting *pflag.FlagSet) {
	own, connecting = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags, connecting.SortFlags = false, false
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[connectionAnnotation] != nil {
			connecting.AddFlag(f)
			return
		}
		own.AddFlag(f)
	})
	return own, connecting
}

func subcommandLines(cmd *cobra.Command, listed func(*cobra.Command) bool) string {
	var b strings.Builder
	for _, sub := range cmd.Commands() {
		if listed(sub) {
			fmt.Fprintf(&b, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
	return b.String()
}

func trimSpaceRight(s string) string { return strings.TrimRightFunc(s, unicode.IsSpace) }
