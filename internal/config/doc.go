// Package config knows the settings of a connection, where each came from, and
// the file with the contexts that they may come from.
//
// A setting is given by a flag, else by the environment, else by the context in
// use or by the properties file that was named in its place, else it has its
// default:
//
//	r, err := config.Resolve(config.Input{Flags: flags, Getenv: os.Getenv, Path: path})
//	if err != nil {
//		return err
//	}
//	opts, err := r.Options(ctx, askForPassword)
//
// Secrets are of type [auth.Secret], and no error of this package has a value in
// it. viper reads the file; what writes it is yaml's own tree, so that comments
// and the order stay.
package config
